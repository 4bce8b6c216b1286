"""Where the running code stands: which run, which branch, inside which step. One context variable holds it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import NotInARun, UsedAfterFork
from ramify.runtime.user_code.call_sites import CallSite
from ramify.serving.types import ChatRequest, ChatResult

if TYPE_CHECKING:
    from ramify.runtime.user_code.sandbox import Sandbox


class Scope(Protocol):
    """What user code can reach from where it stands. The decorators and the LangGraph adapter each have one."""

    @property
    def sandbox(self) -> Sandbox | None:
        """The world of the step that runs, None outside a step or in a pure one."""
        ...

    def call_llm(self, requests: list[ChatRequest], site: CallSite, method: str) -> Awaitable[list[ChatResult]]:
        """One stage of model calls, all at once, each served from the journal where it holds it."""
        ...


_scope: ContextVar[tuple[Scope, int] | None] = ContextVar("ramify_scope", default=None)
"""And the process that entered it: a forked child has the variable, and is no part of the run."""


def current_scope(asked_for: str) -> Scope:
    """The scope of the running code. Raises `NotInARun` naming what was asked for, and `UsedAfterFork` in a child
    that was forked inside a run."""
    held = _scope.get()
    if held is None:
        raise NotInARun(
            f"{asked_for} outside a running workflow: call it from a function under @workflow "
            "(started with `await workflow(...)`, `workflow.invoke(...)` or `ramify run`)"
        )
    scope, owner = held
    refuse_in_child(owner, f"the run in which {asked_for}", UsedAfterFork)
    return scope


def scope_here() -> Scope | None:
    """The scope of the running code; None outside a run."""
    held = _scope.get()
    return None if held is None or held[1] != os.getpid() else held[0]


def is_in_a_run() -> bool:
    return scope_here() is not None


@contextmanager
def entered(scope: Scope) -> Iterator[None]:
    token = _scope.set((scope, os.getpid()))
    try:
        yield
    finally:
        _scope.reset(token)
