"""Record the inputs of a Spec: what the front end read to make it, besides syntax. These are files, modules, values
and attributes. While these objects stay the same, the Spec stays valid.

`recorded_inputs` records what is read in its block. The functions below it look something up, and note it there.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from operator import is_
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any


class SpecInputs:
    """What was read. It keeps the objects alive, so that no other object is taken for one of them."""

    def __init__(self) -> None:
        self._files: dict[str, object] = {}  # entries of `linecache`
        self._modules: dict[str, ModuleType | None] = {}
        self._found: dict[str, bool] = {}  # whether a path is a file
        self._absent: set[str] = set()  # folders that did not exist
        self._namespaces: dict[int, tuple[Mapping[str, object], list[str], list[object]]] = {}
        self._closures: list[tuple[Callable[[], Mapping[str, object]], Mapping[str, object]]] = []
        self._attributes: list[tuple[object, str, object]] = []
        self._code: dict[int, tuple[FunctionType, CodeType]] = {}
        self._answers: list[tuple[Callable[[], bool], bool]] = []
        self._loaded: int | None = None  # the number of loaded modules
        self._steady = True

    def unchanged(self) -> bool:
        """Whether all that was read is found again as it was."""
        try:
            return self._all_same()
        except RuntimeError:  # another thread changes a container at this moment
            return False

    def _all_same(self) -> bool:
        return (
            self._steady
            and self._loaded in (None, len(sys.modules))
            and all(linecache.cache.get(path) is entry for path, entry in self._files.items())
            and all(sys.modules.get(name) is module for name, module in self._modules.items())
            and all(map(_is_same, self._namespaces.values()))
            and all(_are_same(look(), before) for look, before in self._closures)
            and all(_static(owner, name) is value for owner, name, value in self._attributes)
            and all(function.__code__ is code for function, code in self._code.values())
            and all(ask() is answer for ask, answer in self._answers)
            and all(os.path.isfile(path) is found for path, found in self._found.items())  # noqa: PTH113  # a third of Path.is_file
            and not any(map(os.path.lexists, self._absent))
        )

    def _namespace(self, values: Mapping[str, object]) -> None:
        self._namespaces.setdefault(id(values), (values, list(values), list(values.values())))


_MISSING = object()
_now: ContextVar[SpecInputs | None] = ContextVar("ramify_spec_inputs", default=None)


@contextmanager
def recorded_inputs() -> Iterator[SpecInputs]:
    """Record what is read in this block."""
    token = _now.set(made := SpecInputs())
    try:
        yield made
    finally:
        _now.reset(token)


def file_was_read(path: str) -> None:
    """Note that the lines of a file were taken from `linecache`."""
    if (inputs := _now.get()) is not None:
        inputs._files[path] = linecache.cache.get(path)


def values_were_read(values: Mapping[str, object]) -> None:
    """Note that the names of a module were looked up."""
    if (inputs := _now.get()) is not None:
        inputs._namespace(values)


def code_was_read(function: FunctionType) -> None:
    """Note that the code of a function was looked up. Tools that reload code replace it in place."""
    if (inputs := _now.get()) is not None:
        inputs._code[id(function)] = function, function.__code__


def noted(ask: Callable[[], bool]) -> bool:
    """Return the answer to a question about values that code may change in place. A second look asks again."""
    answer = ask()
    if (inputs := _now.get()) is not None:
        inputs._answers.append((ask, answer))
    return answer


def closure_was_read(look: Callable[[], Mapping[str, object]], values: Mapping[str, object]) -> None:
    """Note the values of a closure. `look` finds them again."""
    if values and (inputs := _now.get()) is not None:
        inputs._closures.append((look, values))


def loaded_module(name: str) -> ModuleType | None:
    """Return what is loaded as a module of that name."""
    found = sys.modules.get(name)
    if (inputs := _now.get()) is not None:
        inputs._modules[name] = found
    return found


def loaded_modules() -> list[tuple[str, ModuleType]]:
    """Return all modules that are loaded, by name."""
    if (inputs := _now.get()) is not None:
        inputs._loaded = len(sys.modules)
    return list(sys.modules.items())


def is_file(path: Path) -> bool:
    found = path.is_file()
    if (inputs := _now.get()) is not None:
        if found or os.path.lexists(path.parent):
            inputs._found[str(path)] = found
        else:
            inputs._absent.add(str(_first_absent(path.parent)))
    return found


def _first_absent(folder: Path) -> Path:
    """Return the outermost folder of this path that does not exist. Many paths lie below the same one."""
    while not os.path.lexists(folder.parent):
        folder = folder.parent
    return folder


def static_attribute(owner: object, name: str, default: Any) -> Any:
    """Return an attribute, without running code of its owner."""
    found = _static(owner, name)
    if (inputs := _now.get()) is not None:
        inputs._attributes.append((owner, name, found))
    return default if found is _MISSING else found


def folder_was_listed() -> None:
    """Note that a folder was listed: what was read may be another thing the next time."""
    if (inputs := _now.get()) is not None:
        inputs._steady = False


def _static(owner: object, name: str) -> object:
    return inspect.getattr_static(owner, name, _MISSING)


def _is_same(namespace: tuple[Mapping[str, object], list[str], list[object]]) -> bool:
    now, names, values = namespace
    return len(now) == len(names) and list(now) == names and all(map(is_, now.values(), values))


def _are_same(now: Mapping[str, object], before: Mapping[str, object]) -> bool:
    return now.keys() == before.keys() and all(now[name] is value for name, value in before.items())
