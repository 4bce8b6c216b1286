"""Concord inside vLLM: `--scheduler-cls ramify.serving.vllm_plugin.ConcordScheduler`.

The only package that imports vllm, and only where its scheduler is asked for: options and errors can be read without.
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
