"""What `fork` and the methods of its branches accept: items, and steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from ramify.fork_engine.types import MergeStrategy, Resolver
from ramify.runtime.durations import shown
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


def check_map(count: int, *, concurrency: object, errors: object, need: object) -> None:
    """Check the options of `branches.map` on so many branches. Raises `TypeError` and `ValueError`."""
    for name, given in (("concurrency", concurrency), ("need", need)):
        if given is not None and (not isinstance(given, int) or isinstance(given, bool)):
            raise TypeError(f"branches.map({name}={shown(given)}): write a whole number")
    if errors not in ("raise", "return"):
        raise ValueError(f"branches.map(errors={shown(errors)}): use 'raise' or 'return'")
    if isinstance(concurrency, int) and concurrency < 1:
        raise ValueError(f"branches.map(concurrency={concurrency}): at least one branch runs at a time")
    if isinstance(need, int) and not 1 <= need <= count:
        raise ValueError(f"branches.map(need={need}): need is from 1 to the number of branches, {count}")


def strategy_of(given: object) -> MergeStrategy | Resolver:
    """Return how `adopt` resolves conflicts. Raises `TypeError` and `ValueError`."""
    if callable(given):
        return given
    if not isinstance(given, str):
        raise TypeError(f"adopt(strategy={shown(given)}): give a word, or a function that is asked for each conflict")
    if given not in list(MergeStrategy):
        words = ", ".join(repr(str(one)) for one in MergeStrategy)
        raise ValueError(f"adopt(strategy={shown(given)}): use one of {words}, or a function")
    return MergeStrategy(given)
