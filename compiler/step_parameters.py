"""The names of a step's parameters as a plan states them, and which of them have other names in changed code.

They are written as in a signature, without the Sandbox: `("x", "*rest", "y", "**named")` for
`def f(x, box: Sandbox, *rest, y, **named)`. A "*" alone stands before names that are given by keyword only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def parameters_of(function: Callable[..., Any], sandbox: str | None) -> tuple[str, ...]:
    """Return the names of a step's parameters, without that of the Sandbox."""
    found, alone = list[str](), True
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            found.append(f"*{name}")
            alone = False
        elif one.kind is inspect.Parameter.VAR_KEYWORD:
            found.append(f"**{name}")
        elif name != sandbox:
            if one.kind not in _BY_POSITION and alone:
                found.append("*")
                alone = False
            found.append(name)
    return tuple(found)


def recorded_names(then: Sequence[str], now: Sequence[str]) -> dict[str, str]:
    """Return the names of then of the parameters that have other names now, by their names of now.

    A parameter is known by its place among those of its kind. If an old name stands for another parameter now, as `b`
    does where `f(a, b)` became `f(b, c)`, it is uncertain which parameter is which. Then no name is returned.
    """
    before, after = _Kinds.of(then), _Kinds.of(now)
    if len(after.by_position) < len(before.by_position):
        return {}
    kinds = ((new, was) for new, was in zip(after.all(), before.all(), strict=True) if len(new) >= len(was))
    names = {new: was for each in kinds for new, was in zip(*each, strict=False) if new != was}
    old = set(names.values())
    if names.keys() & before.names() or after.names() & old or len(old) < len(names):
        return {}
    return names


def carried_over(then: Sequence[str], now: Sequence[str]) -> tuple[str, ...]:
    """Return the parameters of now by the names by which a journal knows them: those of then, and the names of now of
    parameters that are new, or if it is uncertain which is which."""
    names = recorded_names(then, now)
    parts = ((one[:at], one[at:]) for one in now for at in [one.rfind("*") + 1])
    return tuple(stars + names.get(name, name) for stars, name in parts)


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Names of parameters by how they are given."""

    by_position: list[str] = field(default_factory=list)
    by_name: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, parameters: Sequence[str]) -> _Kinds:
        found = cls()
        place = found.by_position
        for one in parameters:
            if one.startswith("**"):
                found.named.append(one[2:])
            elif one.startswith("*"):
                found.rest.extend([one[1:]] if one[1:] else [])
                place = found.by_name
            else:
                place.append(one)
        return found

    def all(self) -> tuple[list[str], ...]:
        return self.by_position, self.by_name, self.rest, self.named

    def names(self) -> set[str]:
        return {name for each in self.all() for name in each}
