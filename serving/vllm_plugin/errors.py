"""Errors of the plug-in. All are raised while vLLM builds its scheduler, before it serves anything.

PluginError
├── UnsupportedVllm   there is no adapter for this version of vLLM
└── BadOptions        --additional-config '{"ramify": …}' is not valid
"""

from __future__ import annotations


class PluginError(Exception):
    """Base of the plug-in's errors."""


class UnsupportedVllm(PluginError):
    """There is no adapter for this version of vLLM."""

    def __init__(self, found: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"vLLM {found}: ConcordScheduler supports {' and '.join(known)} only, because the scheduler's interface "
            f"is not public and changes. Install one of these, or start vLLM without --scheduler-cls"
        )


class BadOptions(PluginError):
    """An option under "ramify" in --additional-config is not valid."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f'--additional-config, "ramify": {option}: {problem}')
