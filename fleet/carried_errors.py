"""Errors that travel from a node to the program that waits for the run.

Pickle rebuilds an error by calling its class, which fails for classes that take keywords. Here the class is named,
and its state is set. Only classes that this process has are rebuilt; nothing is imported that the name asks for,
except modules of Ramify.
"""

from __future__ import annotations

import builtins
import pickle
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ramify.fleet.errors import FailedOnNode


class NodeTraceback(Exception):
    """The cause of an error that a node raised: its traceback there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class CarriedError:
    """An error as plain values. shown: its message. trace: its traceback with those of its causes."""

    module: str
    name: str
    args: tuple[Any, ...]
    state: Mapping[str, Any]
    shown: str
    trace: str


def carried(error: BaseException) -> CarriedError:
    kind = type(error)
    trace = "".join(traceback.format_exception(error)).rstrip()
    kept = {name: value for name, value in vars(error).items() if name != "__notes__" and _travels(value)}
    args = tuple(one if _travels(one) else repr(one) for one in error.args)
    return CarriedError(kind.__module__, kind.__qualname__, args, kept, str(error), trace)


def rebuilt(error: CarriedError, node: str) -> BaseException:
    """Return the error, caused by a `NodeTraceback`; a `FailedOnNode` if this process does not have its class."""
    kind = _class_of(error)
    if kind is None:
        made: BaseException = FailedOnNode(
            f"node {node} raised {error.name}: {error.shown}", node=node, kind=f"{error.module}.{error.name}"
        )
    else:
        made = kind.__new__(kind)
        made.args = error.args
        for name, value in error.state.items():
            setattr(made, name, value)
    made.__cause__ = NodeTraceback(error.trace)
    made.add_note(f"on node {node}")
    return made


def _class_of(error: CarriedError) -> type[BaseException] | None:
    if error.module.partition(".")[0] == "ramify":
        try:
            import_module(error.module)
        except ImportError:
            return None
    found: Any = builtins if error.module == "builtins" else sys.modules.get(error.module)
    for part in error.name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _travels(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001  # __reduce__ of a user's class may raise anything
        return False
    return True
