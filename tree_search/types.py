"""What a search works on, what it returns, and its errors. `SearchError` is the root of these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable


class SearchError(Exception):
    """The root of this package's errors."""


class NothingProposed(SearchError):
    """The policy proposed no action at the root, so the search has no candidate."""


class NoScore(SearchError):
    """A turn ended without a score, and the search has no `score` function."""


Action = TypeVar("Action")
Action_contra = TypeVar("Action_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step led to. `done`: no turn can follow. `score`: the value of the state, if the environment knows
    it; higher is better."""

    observation: Any = None
    done: bool = False
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Turn(Generic[Action]):
    """One action and its result."""

    action: Action
    result: StepResult


class Environment(Protocol[Action_contra]):
    """The whole state of one agent: its world, and whatever else an action changes."""

    async def step(self, action: Action_contra, /) -> StepResult:
        """Act, and return what came of it."""
        ...

    async def fork(self, n: int, /) -> Sequence[Self]:
        """Return `n` independent copies of the state of now."""
        ...

    async def close(self) -> None:
        """End it. May be called twice."""
        ...


@runtime_checkable
class Keyed(Protocol):
    """An environment that can tell whether two states are equal."""

    async def state_key(self) -> Hashable | None:
        """Return a value that is equal for equal states, or None where that is not known."""
        ...


@runtime_checkable
class HistoryKeyed(Protocol):
    """An environment that knows which histories are equal for it. Without it, all of a history counts."""

    def history_key(self, history: Sequence[Turn[Any]], /) -> Hashable:
        """Return a value that is equal for equal histories."""
        ...


E = TypeVar("E", bound=Environment[Any])

Policy = Callable[[E, Sequence[Turn[Any]], int], Awaitable[Sequence[Any]]]
"""Proposes up to `n` next actions: (environment, history, n) to actions, the best first."""

Score = Callable[[E, Sequence[Turn[Any]]], Awaitable[float]]
"""The value of a state: (environment, history) to a number; higher is better."""


class Stopped(StrEnum):
    """Why a search ended."""

    COMPLETE = "complete"  # the method had nothing left to try
    DEADLINE = "deadline"
    GOAL = "goal"  # a state reached the score that was asked for


@dataclass(eq=False, slots=True)
class Node(Generic[E]):
    """A state that the search reached. `environment` is open only while the search needs it; that of the result's
    `best` stays open until the result is closed."""

    environment: E
    history: tuple[Turn[Any], ...] = ()
    score: float | None = None
    done: bool = False
    parent: Node[E] | None = None
    children: list[Node[E]] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return len(self.history)


@dataclass(slots=True)
class SearchResult(Generic[E]):
    """What a search found. `best` is the best finished state, or the best state of all if none was finished.

    steps: actions that were performed. skipped: proposed actions that were not, because an equal one was tried at the
    same state. merged: states that were dropped because an equal one was there. failed: steps that raised; `errors`
    has their errors. seconds: the time that the search took.
    """

    best: Node[E]
    steps: int
    skipped: int
    merged: int
    failed: int
    stopped: Stopped
    seconds: float
    errors: list[Exception] = field(default_factory=list)
