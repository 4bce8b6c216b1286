"""What stops the plug-in from starting. Both are raised while vLLM builds its scheduler, before it serves anything.

PluginError
├── UnsupportedVllm   a version of vLLM whose scheduler nobody has looked at
└── BadOptions        --additional-config '{"ramify": …}' that cannot be read
"""

from __future__ import annotations


class PluginError(Exception):
    """Base of the plug-in's errors."""


class UnsupportedVllm(PluginError):
    def __init__(self, found: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"vLLM {found}: ConcordScheduler knows the schedulers of {' and '.join(known)} only; their "
            f"interface is not public and changes. Install one of these, or start vLLM without --scheduler-cls"
        )


class BadOptions(PluginError):
    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f'--additional-config, "ramify": {option}: {problem}')
