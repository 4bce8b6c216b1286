"""Errors that travel from a node to the program that waits for the run.

Pickle rebuilds an error by calling its class, which fails for classes that take keywords. Here the class is named,
and its state is set; so it is with errors in its arguments or attributes, as those of an `ExceptionGroup`. A class
that says itself how it is pickled (`__reduce__`) is asked first. Only classes that this process has are rebuilt;
nothing is imported that the name asks for, except modules of Ramify. A program's `__main__` is the module of that
file on the nodes. Arguments and attributes are encoded one by one, so what cannot be decoded here (an object of a
class that this process does not have) does not cost the rest.
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
    of its causes. cause: its `__cause__`, without the cause of that. whole: what its class made of it to travel; None
    if that is not its own way."""

    module: str
    name: str
    args: tuple[bytes, ...]
    state: Mapping[str, bytes]
    shown: str
    trace: str
    cause: CarriedError | None = None
    notes: tuple[str, ...] = ()
    whole: bytes | None = None


def carried(error: BaseException) -> CarriedError:
    trace = "".join(traceback.format_exception(error)).rstrip()
    cause = error.__cause__
    return _carried(error, trace, _carried(cause, "", None) if isinstance(cause, Exception) else None)


def _carried(
    error: BaseException, trace: str, cause: CarriedError | None, within: frozenset[int] = frozenset()
) -> CarriedError:
    """within: the ids of errors that hold this one."""
    kind, inside = type(error), within | {id(error)}
    given = OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args  # args lacks the file's name
    args = tuple(_encoded(one, inside) or pickle.dumps(_shown(one, repr)) for one in given)
    state = {name: _encoded(value, inside) for name, value in vars(error).items() if name != "__notes__"}
    kept = {name: value for name, value in state.items() if value is not None}
    notes = tuple(one for one in getattr(error, "__notes__", ()) if isinstance(one, str))
    whole = _encoded_by_its_class(error) if _says_how(kind) else None
    module = canonical_module(kind.__module__)
    return CarriedError(module, kind.__qualname__, args, kept, _shown(error, str), trace, cause, notes, whole)


def _says_how(kind: type[BaseException]) -> bool:
    """Whether a class that is not built in says how its errors are pickled."""
    own = [vars(one) for one in kind.__mro__ if one.__module__ != "builtins"]
    return any(name in one for one in own for name in ("__reduce__", "__reduce_ex__"))


def rebuilt(error: CarriedError, node: str) -> BaseException:
    """Return the error. A `NodeTraceback` is its cause, or the cause of its cause. It is a `FailedOnNode` if this
    process cannot make it: it does not have its class, for example."""
    made = _made(error, node)
    notes, where = vars(made).setdefault("__notes__", []), f"on node {node}"
    if where not in notes:  # it was rebuilt before, by the program that has the fleet
        notes.append(where)
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
    for way in (_instance_by_its_class, _instance):
        try:
            made = None if kind is None else way(kind, error, node)
            if made is not None and type(made) is kind and str(made) == error.shown:
                return _noted(made, error)
        except Exception:  # noqa: BLE001  # user's classes may raise anything
            continue
    said = f"node {node} raised {error.name}: {error.shown}"
    return _noted(FailedOnNode(said, node=node, kind=f"{error.module}.{error.name}"), error)


def _noted(made: BaseException, error: CarriedError) -> BaseException:
    if error.notes:
        vars(made)["__notes__"] = list(error.notes)
    return made


def _instance_by_its_class(kind: type[BaseException], error: CarriedError, node: str) -> BaseException | None:
    if error.whole is None:
        return None
    made: BaseException = _Decoder(error.whole, node).load()
    return made


def _instance(kind: type[BaseException], error: CarriedError, node: str) -> BaseException:
    args = [_Decoder(one, node).load() for one in error.args]
    made = kind(*args) if kind.__module__ == "builtins" else kind.__new__(kind, *args)
    for name, value in error.state.items():
        try:
            vars(made)[name] = _Decoder(value, node).load()
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


class _Encoder(pickle.Pickler):
    """Carries errors in the value as errors. within: the ids of those that hold the value."""

    def __init__(self, into: io.BytesIO, within: frozenset[int]) -> None:
        super().__init__(into)
        self._within = within

    def persistent_id(self, value: object) -> CarriedError | None:
        if not isinstance(value, BaseException):
            return None
        if id(value) in self._within:
            raise pickle.PicklingError("an error that holds itself")
        return _carried(value, "", None, self._within)


class _Decoder(pickle.Unpickler):
    def __init__(self, data: bytes, node: str) -> None:
        super().__init__(io.BytesIO(data))
        self._node = node

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(_name_here(module), name)

    def persistent_load(self, error: CarriedError) -> BaseException:
        return _made(error, self._node)


def _encoded(value: object, within: frozenset[int]) -> bytes | None:
    into = io.BytesIO()
    try:
        _Encoder(into, within).dump(value)
    except Exception:  # noqa: BLE001  # __reduce__ of a user's class may raise anything
        return None
    return into.getvalue()


def _encoded_by_its_class(error: BaseException) -> bytes | None:
    try:
        return pickle.dumps(error)
    except Exception:  # noqa: BLE001  # as above
        return None


def _shown(value: object, show: Callable[[object], str]) -> str:
    try:
        return show(value)
    except Exception:  # noqa: BLE001  # as above
        return f"<{type(value).__qualname__}, which cannot be shown>"
