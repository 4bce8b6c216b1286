"""What `fork` and the methods of its branches accept: items, and steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from ramify.runtime.execution.step_call import StepDef
from ramify.runtime.user_code.call_sites import CallSite

T = TypeVar("T")


class HasStep(Protocol):
    """A function under `@step`, as `map` and `run` take it."""

    @property
    def definition(self) -> StepDef: ...


def as_list(items: Iterable[T], site: CallSite) -> list[T]:
    """Return the items as a list. Raises `TypeError` for sets, whose order changes between processes, and for objects
    that are not iterable."""
    if isinstance(items, set | frozenset):
        raise TypeError(
            f"{site.where}: fork() was given a set, whose order differs in the next process: give it `sorted(...)`"
        )
    if not isinstance(items, Iterable):
        raise TypeError(
            f"{site.where}: fork() was given a {type(items).__name__}: give it a list with an item for each branch "
            "(await an async value first)"
        )
    return list(items)


def check_step(step: object, site: CallSite) -> None:
    if not hasattr(step, "definition"):
        name = getattr(step, "__qualname__", repr(step))
        raise TypeError(f"{site.where}: branches run steps, and {name} is not a step: put @step on it")
