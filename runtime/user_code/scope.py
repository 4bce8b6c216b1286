"""The scope of the running code: its run, branch and step. A context variable holds it."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable
from contextvars import Context, ContextVar, Token
from typing import TYPE_CHECKING, Any, Protocol

from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import NotInARun, UsedAfterFork
from ramify.runtime.user_code.call_sites import CallSite
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.serving.types import ChatRequest, ChatResult

if TYPE_CHECKING:
    from ramify.runtime.user_code.sandbox import Sandbox


class Scope(Protocol):
    """What the running user code can use of its run. The decorators and the LangGraph adapter each implement it."""

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox of the running step; None outside a step and in a pure step."""
        ...

    def call_llm(self, requests: list[ChatRequest], site: CallSite, said: CallSLO) -> Awaitable[list[ChatResult]]:
        """Make one stage of model calls, all at once, of which the caller says `said` (`slo`). Calls that the
        journal holds are served from it."""
        ...


_scope: ContextVar[tuple[Scope, int] | None] = ContextVar("ramify_scope", default=None)
"""The scope, and the id of the process that entered it: a forked child inherits the variable, but not the run."""


def current_scope(asked_for: str) -> Scope:
    """Return the scope of the running code. Raises `NotInARun`, which names `asked_for`, and `UsedAfterFork` in a
    child that was forked inside a run."""
    held = _scope.get()
    if held is None:
        raise NotInARun(
            f"{asked_for} outside a running workflow: call it from a function under @workflow "
            "(started with `await workflow(...)`, `workflow.invoke(...)` or `ramify run`)" + _of_threads()
        )
    scope, owner = held
    refuse_in_child(owner, f"the run in which {asked_for}", UsedAfterFork)
    return scope


def _of_threads() -> str:
    if threading.current_thread() is threading.main_thread():
        return ""
    return (
        ". A thread that a workflow starts needs the workflow's context: "
        "`pool.submit(contextvars.copy_context().run, step, …)`"
    )


def scope_here() -> Scope | None:
    """Return the scope of the running code; None outside a run."""
    held = _scope.get()
    return None if held is None or held[1] != os.getpid() else held[0]


def run_of(context: Context) -> object | None:
    """Return the run to which the code of a context belongs; None if that is not known."""
    held = context.get(_scope)
    return None if held is None else getattr(held[0], "run", None)


def is_in_step(context: Context) -> bool:
    """Whether the code of a context is that of a step."""
    held = context.get(_scope)
    return held is not None and getattr(held[0], "step", None) is not None


def is_in_a_run() -> bool:
    """Whether the running code belongs to a run."""
    return scope_here() is not None


def enter(scope: Scope) -> Token[Any]:
    """Make `scope` the current scope, until `leave` is called with what this returns."""
    return _scope.set((scope, os.getpid()))


leave = _scope.reset


class entered:
    """Makes `scope` the current scope in its block. A class, because every step enters one: a generator takes four
    times as long."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = enter(self._scope)

    def __exit__(self, *raised: object) -> None:
        leave(self._token)
