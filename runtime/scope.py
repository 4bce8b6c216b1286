"""Where the running code stands: which run, which branch, inside which step. One context variable holds it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from ramify.runtime.errors import NotInARun
from ramify.runtime.sites import CallSite
from ramify.serving.types import ChatRequest, ChatResult

if TYPE_CHECKING:
    from ramify.runtime.sandbox import Sandbox


class Scope(Protocol):
    """What user code can reach from where it stands. The decorators and the LangGraph adapter each have one."""

    @property
    def sandbox(self) -> Sandbox | None:
        """The world of the step that runs, None outside a step or in a pure one."""
        ...

    def call_llm(self, requests: list[ChatRequest], site: CallSite, method: str) -> Awaitable[list[ChatResult]]:
        """One stage of model calls, all at once, each served from the journal where it holds it."""
        ...


_scope: ContextVar[Scope | None] = ContextVar("ramify_scope", default=None)


def current_scope(asked_for: str) -> Scope:
    """The scope of the running code. Raises `NotInARun` naming what was asked for."""
    scope = _scope.get()
    if scope is None:
        raise NotInARun(
            f"{asked_for} outside a running workflow: call it from a function under @workflow "
            "(started with `await workflow(...)`, `workflow.invoke(...)` or `ramify run`)"
        )
    return scope


def scope_here() -> Scope | None:
    """The scope of the running code; None outside a run."""
    return _scope.get()


def is_in_a_run() -> bool:
    return _scope.get() is not None


@contextmanager
def entered(scope: Scope) -> Iterator[None]:
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)
