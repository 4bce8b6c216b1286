"""Checks of the options of `@step`. They are made where the step is defined: a hook is called only after a crash, or
when a run goes back, which is too late to learn that it cannot be called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

from ramify.runtime.durations import shown

E = TypeVar("E", bound=StrEnum)


def one_of(kind: type[E], argument: str, given: str | None) -> E | None:
    """Raises `ValueError`, which names the values that there are."""
    if given is None or given in list(kind):
        return None if given is None else kind(given)
    raise ValueError(f"@step({argument}={given!r}): use one of {', '.join(repr(str(one)) for one in kind)}")


def check_options(*, name: object, retry: object, **switches: object) -> None:
    """Raises `TypeError` and `ValueError`, which name the option. `switches`: those that are True or False."""
    for option, given in switches.items():
        if not isinstance(given, bool):
            raise TypeError(f"@step({option}={shown(given)}): write True or False")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"@step(name={shown(name)}): a name is a text")
    if name is not None and not name.strip():
        raise ValueError(f"@step(name={name!r}): the name is empty; leave it out to take the function's")
    if not isinstance(retry, int) or isinstance(retry, bool):
        raise TypeError(f"@step(retry={shown(retry)}): write how often, a whole number from 0")
    if retry < 0:
        raise ValueError(f"@step(retry={retry}) is negative: write how often, a whole number from 0")


def check_hook(step: Callable[..., Any], option: str, hook: object, *before: str, left_out: str | None) -> None:
    """Raises `TypeError` if a hook cannot be called with the values `before`, and the step's arguments by name.
    `left_out`: the step's parameter for its world, which hooks do not get."""
    if hook is None:
        return
    names = [name for name in inspect.signature(step).parameters if name != left_out]
    called = f"{option}({', '.join([*before, *(f'{name}=…' for name in names)])})"
    what = f"step {step.__qualname__!r}: {option}={shown(hook)}"
    if not callable(hook):
        raise TypeError(f"{what} is not a function: give one that Ramify can call as {called}")
    try:
        signature = inspect.signature(hook)
    except ValueError:  # some functions in C do not tell
        return
    try:
        signature.bind(*before, **dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(f"{what} cannot be called as {called}: {error}") from None
