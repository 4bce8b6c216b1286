"""Ramify's scheduler inside vLLM: `--scheduler-cls ramify.serving.vllm_plugin.ConcordScheduler`.

Start at `scheduler.ConcordScheduler`. `version_adapters` has everything that depends on vLLM's version,
`engine_views` shows vLLM's requests to the policy and measures the engine's speed, `kept_contexts` holds the KV of
programs that wait for tools, and `messages_and_reports` receives what the gateway says beside requests, and writes
totals and a decision log. `release_endpoint` is a route of vLLM's server for gateways that cannot reach the socket.
`scheduler` imports vllm, and so do functions of `version_adapters`. Options can be read without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramify.serving.vllm_plugin.scheduler import ConcordScheduler

__all__ = ["ConcordScheduler"]


def __getattr__(name: str) -> object:
    if name == "ConcordScheduler":
        from ramify.serving.vllm_plugin.scheduler import ConcordScheduler

        return ConcordScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
