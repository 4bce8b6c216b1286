"""Ramify: fork, roll back, merge and resume the whole state of an agent.

Importing this package loads nothing heavy: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramify.decorators import Step, Workflow, step, workflow
    from ramify.faces import Choice, current_sandbox, fork, llm
    from ramify.graph import compile
    from ramify.runtime.forks import Branch, Branches, Outcome, Outcomes
    from ramify.runtime.sandbox import Sandbox, SyncSandbox
    from ramify.sandboxes.contract import RunResult
    from ramify.session import Runtime

_HOME = {
    "Branch": "ramify.runtime.forks",
    "Branches": "ramify.runtime.forks",
    "Choice": "ramify.faces",
    "Outcome": "ramify.runtime.forks",
    "Outcomes": "ramify.runtime.forks",
    "RunResult": "ramify.sandboxes.contract",
    "Runtime": "ramify.session",
    "Sandbox": "ramify.runtime.sandbox",
    "Step": "ramify.decorators",
    "SyncSandbox": "ramify.runtime.sandbox",
    "Workflow": "ramify.decorators",
    "compile": "ramify.graph",
    "current_sandbox": "ramify.faces",
    "fork": "ramify.faces",
    "llm": "ramify.faces",
    "step": "ramify.decorators",
    "workflow": "ramify.decorators",
}

__version__ = "0.1.0"
__all__ = [
    "Branch",
    "Branches",
    "Choice",
    "Outcome",
    "Outcomes",
    "RunResult",
    "Runtime",
    "Sandbox",
    "Step",
    "SyncSandbox",
    "Workflow",
    "compile",
    "current_sandbox",
    "fork",
    "llm",
    "step",
    "workflow",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'ramify' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
