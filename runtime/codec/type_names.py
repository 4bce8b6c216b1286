"""How a stored value names its type, and which types a stored name may refer to.

A name is `module:Qualified.Name`. A parametrised generic is a JSON object that names its origin and its arguments. A
name refers only to modules that are loaded, or that the run's own code imports somewhere; a stored row cannot cause
the import of any other module.
"""

from __future__ import annotations

import ast
import functools
import importlib
import operator
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from ramify.compiler.parsing import parsed
from ramify.runtime.codec.persisted_names import present_name, stored_name
from ramify.runtime.errors import NotSerialisable
from ramify.runtime.user_code.workflow_loader import (
    canonical_module,
    files_of,
    imported_names,
    is_main_module,
    targets,
)

Ref = Any
"""JSON: a string, or an object for a type that is composed of several types."""

_NONE = "None"


def ref_of(found: Any, where: str) -> Ref:
    """Return the reference to a class or another type. Raises `NotSerialisable` if it could not be resolved again."""
    ref = _ref(found, where)
    if not isinstance(ref, str):
        try:
            again = resolve(ref)
        except Exception as error:
            raise NotSerialisable(f"{where}: the type {found!r} cannot be built again: {error}") from error
        if again is not found and (isinstance(found, type) or again != found):
            raise NotSerialisable(f"{where}: the type {found!r} cannot be named: give it a name in a module")
    return ref


def _ref(found: Any, where: str) -> Ref:
    if found is None or found is types.NoneType:
        return _NONE
    if found is Ellipsis:
        return "..."
    generic = getattr(found, "__pydantic_generic_metadata__", None)
    if isinstance(found, type) and generic and generic["origin"] is not None:
        return {"o": _ref(generic["origin"], where), "a": [_ref(each, where) for each in generic["args"]]}
    if isinstance(found, type) and get_origin(found) is None:  # in 3.11 `list[int]` counts as a type
        return _named(found, where)
    origin, args = get_origin(found), get_args(found)
    if origin is types.UnionType:
        return {"|": [_ref(each, where) for each in args]}
    if origin is Union:
        return {"union": [_ref(each, where) for each in args]}
    if origin is Literal and all(
        isinstance(each, str | int | None) and type(each).__module__ == "builtins" for each in args
    ):
        return {"literal": list(args)}
    if origin is not None and isinstance(origin, type):
        old = getattr(found, "_name", None)  # typing.List[int] is another type argument than list[int]
        if (
            type(found).__module__ == "typing"
            and old
            and getattr(typing, old, None) is not None
            and origin.__name__ != old
        ):
            return {"typing": old, "a": [_ref(each, where) for each in args]}
        return {"o": _ref(origin, where), "a": [_ref(each, where) for each in args]}
    if hasattr(found, "__name__") and hasattr(found, "__module__"):  # a TypeVar, a NewType
        return _named(found, where)
    raise NotSerialisable(f"{where}: the type {found!r} cannot be named: give it a name in a module")


def _named(found: Any, where: str) -> str:
    qualname = getattr(found, "__qualname__", found.__name__)
    if "<locals>" in qualname:
        raise NotSerialisable(f"{where}: {qualname} is defined inside a function: move it to the module's top level")
    name = f"{canonical_module(found.__module__)}:{qualname}"
    try:
        again = _find(name)
    except NotSerialisable:
        again = None
    if again is not found:
        raise NotSerialisable(
            f"{where}: {found.__module__}.{qualname} is not found under that name, so it could not be read back: "
            "define it at its module's top level, once, and do not rebind its name"
        )
    return stored_name(name)


def resolve(ref: Ref, find: Callable[[str], Any] | None = None) -> Any:
    """Return the type that a reference names. `find`: looks up names. Raises `NotSerialisable`."""
    find = find or _find
    if isinstance(ref, str):
        if ref == _NONE:
            return None
        return ... if ref == "..." else find(ref)
    if not isinstance(ref, dict):
        raise NotSerialisable(f"a stored value names its type by {ref!r}, which is not a name")
    if "|" in ref:
        return functools.reduce(operator.or_, [resolve(each, find) for each in ref["|"]])
    if "union" in ref:
        return Union[tuple(resolve(each, find) for each in ref["union"])]  # noqa: UP007  another object than `|` makes
    if "literal" in ref:
        return Literal[tuple(ref["literal"])]
    args = tuple(resolve(each, find) for each in ref["a"])
    if "typing" in ref:
        origin = getattr(typing, ref["typing"])
    else:
        origin = resolve(ref["o"], find)
        if not isinstance(origin, type):
            raise NotSerialisable(f"a stored value names {origin!r} as a generic class, but it is not one now")
    return origin[args if len(args) != 1 else args[0]]


def resolve_own(name: str) -> Any:
    """Look up a name among Ramify's own types only, for commands that read the stored values of others."""
    if not name.startswith("ramify."):
        raise NotSerialisable(f"a stored value is a {name}, and not what Ramify itself recorded there")
    return _find(name)


def _find(name: str) -> Any:
    module_name, _, qualname = present_name(name).partition(":")
    found: Any = _module(module_name)
    try:
        for part in qualname.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise NotSerialisable(f"a stored value is a {name}, which {module_name} does not have: {error}") from error
    return found


def _module(name: str) -> types.ModuleType:
    if is_main_module(name):
        return sys.modules["__main__"]
    if (loaded := sys.modules.get(name)) is not None:
        return loaded
    if name.startswith("ramify."):
        return _imported(name)
    for named in _above(name) if _code_names(name) else ():
        _imported(named)
        if (loaded := sys.modules.get(name)) is not None:
            return loaded
    raise NotSerialisable(
        f"a stored value is of a type of the module {name!r}, which is not loaded and which the workflow's own code "
        f"does not import, so it is not imported here: import {name} in the workflow's file"
    )


def _imported(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotSerialisable(
            f"a stored value is of a type of {name!r}, which cannot be imported: {error}"
        ) from error


def _above(name: str) -> list[str]:
    """Return the packages of a module, outermost first, and the module, as far as the run's code imports them."""
    parts = name.split(".")
    every = [".".join(parts[: n + 1]) for n in range(len(parts))]
    named = _names()
    return [each for each in every if each in named]


def _code_names(name: str) -> bool:
    return bool(_above(name))


def _names() -> frozenset[str]:
    files = frozenset(
        (str(file), module)
        for module in targets()
        if (file := getattr(sys.modules.get(module), "__file__", None)) is not None
    )
    return _names_in(files)


@functools.lru_cache(maxsize=8)
def _names_in(targets: frozenset[tuple[str, str]]) -> frozenset[str]:
    """Return the modules that these files import, also inside functions, and those that the imported user's files
    import."""
    found, seen = set[str](), set[str]()
    todo = [(file, getattr(sys.modules.get(module), "__package__", None) or "") for file, module in targets]
    while todo:
        file, package = todo.pop()
        if file in seen or not file.endswith(".py"):
            continue
        seen.add(file)
        try:
            text = Path(file).read_bytes()
            tree = parsed(functools.partial(ast.parse, text))
        except (OSError, SyntaxError, ValueError):
            continue
        names = {name for node in ast.walk(tree) for name in imported_names(node, package) if name}
        found |= names
        todo += files_of(sorted(names))
    return frozenset(found)
