"""Errors that travel from a node to the program that waits for the run.

Pickle rebuilds an error by calling its class, which fails for classes that take keywords. Here the class is named,
and its state is set. Only classes that this process has are rebuilt; nothing is imported that the name asks for,
except modules of Ramify. A program's `__main__` is the module of that file on the nodes. Arguments and attributes are
encoded one by one, so what cannot be decoded here (an object of a class that this process does not have) does not
cost the rest.
"""

from __future__ import annotations

import builtins
import io
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ramify.fleet.errors import FailedOnNode
from ramify.runtime.user_code.workflow_loader import canonical_module, is_main_module


class NodeTraceback(Exception):
    """The last cause of an error that a node raised: the tracebacks there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class CarriedError:
    """An error as plain values. args, state: pickled one by one. shown: its message. trace: its traceback with those
    of its causes. cause: its `__cause__`, without the cause of that."""

    module: str
    name: str
    args: tuple[bytes, ...]
    state: Mapping[str, bytes]
    shown: str
    trace: str
    cause: CarriedError | None = None


def carried(error: BaseException) -> CarriedError:
    trace = "".join(traceback.format_exception(error)).rstrip()
    cause = error.__cause__
    return _carried(error, trace, _carried(cause, "", None) if isinstance(cause, Exception) else None)


def _carried(error: BaseException, trace: str, cause: CarriedError | None) -> CarriedError:
    kind = type(error)
    given = OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args  # args lacks the file's name
    args = tuple(_encoded(one) or pickle.dumps(_shown(one, repr)) for one in given)
    state = {name: _encoded(value) for name, value in vars(error).items() if name != "__notes__"}
    kept = {name: value for name, value in state.items() if value is not None}
    return CarriedError(
        canonical_module(kind.__module__), kind.__qualname__, args, kept, _shown(error, str), trace, cause
    )


def rebuilt(error: CarriedError, node: str) -> BaseException:
    """Return the error. A `NodeTraceback` is its cause, or the cause of its cause. It is a `FailedOnNode` if this
    process cannot make it: it does not have its class, for example."""
    made = _made(error, node)
    vars(made).setdefault("__notes__", []).append(f"on node {node}")
    lowest = made
    if error.cause is not None:
        lowest = _made(error.cause, node)
        _set_cause(made, lowest)
    _set_cause(lowest, NodeTraceback(error.trace))
    return made


def _set_cause(error: BaseException, cause: BaseException) -> None:
    BaseException.__setattr__(error, "__cause__", cause)  # a frozen dataclass refuses `error.__cause__ = cause`


def _made(error: CarriedError, node: str) -> BaseException:
    kind = _class_of(error)
    try:
        made = None if kind is None else _instance(kind, error)
        if made is not None and str(made) == error.shown:
            return made
    except Exception:  # noqa: BLE001  # user's classes may raise anything
        pass
    return FailedOnNode(
        f"node {node} raised {error.name}: {error.shown}", node=node, kind=f"{error.module}.{error.name}"
    )


def _instance(kind: type[BaseException], error: CarriedError) -> BaseException:
    args = [_Decoder(io.BytesIO(one)).load() for one in error.args]
    made = kind(*args) if kind.__module__ == "builtins" else kind.__new__(kind, *args)
    for name, value in error.state.items():
        try:
            vars(made)[name] = _Decoder(io.BytesIO(value)).load()
        except Exception:  # noqa: BLE001  # of a class that is not here: it is left out
            continue
    return made


def _class_of(error: CarriedError) -> type[BaseException] | None:
    if error.module.partition(".")[0] == "ramify":
        try:
            import_module(error.module)
        except ImportError:
            return None
    found: Any = builtins if error.module == "builtins" else sys.modules.get(_name_here(error.module))
    for part in error.name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _name_here(module: str) -> str:
    return "__main__" if is_main_module(module) else module


class _Decoder(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(_name_here(module), name)


def _encoded(value: object) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  # __reduce__ of a user's class may raise anything
        return None


def _shown(value: object, show: Callable[[object], str]) -> str:
    try:
        return show(value)
    except Exception:  # noqa: BLE001  # as above
        return f"<{type(value).__qualname__}, which cannot be shown>"
