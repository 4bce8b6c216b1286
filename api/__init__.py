"""Ramify: fork, roll back, merge and resume the whole state of an agent.

Importing this package loads nothing heavy: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramify.decorators import Step, Workflow, step, workflow
    from ramify.graph import compile
    from ramify.run_functions import (
        Choice,
        current_sandbox,
        fork,
        idempotency_key,
        interrupt,
        llm,
        patched,
        time_left,
    )
    from ramify.runtime.effects.fence import DidNotHappen, Happened
    from ramify.runtime.execution.forks import Branch, Branches, Outcome, Outcomes
    from ramify.runtime.langgraph.checkpointer import Saver
    from ramify.runtime.user_code.sandbox import Sandbox, SyncSandbox
    from ramify.sandboxes.contract import RunResult
    from ramify.session import Runtime
    from ramify.tools import Tool, tool

_HOME = {
    "Branch": "ramify.runtime.execution.forks",
    "Branches": "ramify.runtime.execution.forks",
    "Choice": "ramify.run_functions",
    "DidNotHappen": "ramify.runtime.effects.fence",
    "Happened": "ramify.runtime.effects.fence",
    "Outcome": "ramify.runtime.execution.forks",
    "Outcomes": "ramify.runtime.execution.forks",
    "RunResult": "ramify.sandboxes.contract",
    "Runtime": "ramify.session",
    "Sandbox": "ramify.runtime.user_code.sandbox",
    "Saver": "ramify.runtime.langgraph.checkpointer",
    "Step": "ramify.decorators",
    "SyncSandbox": "ramify.runtime.user_code.sandbox",
    "Tool": "ramify.tools",
    "Workflow": "ramify.decorators",
    "compile": "ramify.graph",
    "current_sandbox": "ramify.run_functions",
    "fork": "ramify.run_functions",
    "idempotency_key": "ramify.run_functions",
    "interrupt": "ramify.run_functions",
    "llm": "ramify.run_functions",
    "patched": "ramify.run_functions",
    "step": "ramify.decorators",
    "time_left": "ramify.run_functions",
    "tool": "ramify.tools",
    "workflow": "ramify.decorators",
}

__version__ = "0.2.0"
__all__ = [
    "Branch",
    "Branches",
    "Choice",
    "DidNotHappen",
    "Happened",
    "Outcome",
    "Outcomes",
    "RunResult",
    "Runtime",
    "Sandbox",
    "Saver",
    "Step",
    "SyncSandbox",
    "Tool",
    "Workflow",
    "compile",
    "current_sandbox",
    "fork",
    "idempotency_key",
    "interrupt",
    "llm",
    "patched",
    "step",
    "time_left",
    "tool",
    "workflow",
]


_MODULES = ("graph", "metrics", "telemetry")
"""Modules for users that need no import of their own: `ramify.graph.saver()` works after `import ramify`."""


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'ramify' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_MODULES])
