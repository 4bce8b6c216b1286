"""Ramify's scheduler inside vLLM: `--scheduler-cls ramify.serving.vllm_plugin.ConcordScheduler`.

Start at `scheduler.ConcordScheduler`. `version_adapters` has everything that depends on vLLM's version,
`request_views` shows vLLM's requests to the policy, `calibration` measures the engine's speed, `gateway_messages`
receives what the gateway says beside requests, `kept_contexts` holds the KV of programs that wait for tools, and
`reports` writes totals and a decision log. Only `scheduler` imports vllm: options and errors can be read without it.
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
