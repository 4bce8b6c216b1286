"""Serialisers: one that builds only types that the program knows, and two that build no types at all.

LangGraph's serialiser reads a module and a name from the database, imports the module and calls the name. Anyone who
can write to the database could run code in every process that reads it. `StrictSerializer`, the default of `Saver`,
builds the types that LangGraph counts as safe, those that it was given, and data classes (pydantic models,
dataclasses, enums, named tuples) of modules that the program has loaded itself. It refuses anything else, and imports
nothing for a row.

It writes LangGraph's form, except for objects that would come back changed (a time zone, a `fold`, a tuple in a
dataclass, a parametrised generic, which fields were set): these are written in the journal's form.

`PlainSerializer` is for commands that only read a thread, or move it. It ignores modules and callables, and returns
an object as its fields, a set as its members, an array as a description.

`PortableSerializer` moves values from one database to another. The types of a thread belong to the program that made
it, which a command that copies the thread does not load. So an object of LangGraph's form stays the bytes that it is.
Only the form that Ramify alone reads (`EXACT`) is built, and written in LangGraph's form: the types of such objects
have to be loaded.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_METHOD_SINGLE_ARG,
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)

from ramify.runtime.codec import codec
from ramify.runtime.codec.object_parts import same
from ramify.runtime.errors import NotSerialisable
from ramify.runtime.langgraph.checkpointer.compat import (
    MSGPACK_OPTION,
    SAFE_MSGPACK_METHODS,
    SAFE_MSGPACK_TYPES,
    DeltaSnapshot,
    ext_hook_for,
    msgpack_form,
    reconstruction_fallback,
    send_from_args,
)
from ramify.runtime.langgraph.errors import ThreadNotCopied, TypeNotAllowed

EXACT = 64
"""The msgpack extension of an object that LangGraph's own form would change: it holds the journal's form
(`ramify.runtime.codec.codec`)."""

_ID = (8, 4, 4, 4, 12)  # lengths of the parts of a UUID in its text form


class PlainSerializer:
    """A read-only serialiser. It returns only values that JSON and msgpack can express themselves."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        raise NotImplementedError("it only reads")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Raises `ValueError` for damaged data, and for a kind that only its own serialiser reads."""
        kind, body = data
        match kind:
            case "null" | "empty":
                return None
            case "bytes" | "bytearray":
                return bytes(body)
            case "json":
                return _loaded(body)
            case "msgpack":
                return ormsgpack.unpackb(body, ext_hook=_plain_extension, option=ormsgpack.OPT_NON_STR_KEYS)
        raise ValueError(f"{len(body)} bytes ({kind})")


def _plain_extension(code: int, data: bytes) -> Any:
    if code == EXACT:
        return _without_types(_loaded(data))
    held = ormsgpack.unpackb(data, ext_hook=_plain_extension, option=ormsgpack.OPT_NON_STR_KEYS)
    if code == EXT_DELTA_SNAPSHOT:
        return held
    if code == EXT_NUMPY_ARRAY:
        kind, shape, *_ = held
        return f"array {kind}, shape {'x'.join(map(str, shape))}"
    module, name, value, *_ = held
    if (module, name) == ("uuid", "UUID") and isinstance(value, str):
        parts = iter(value)
        return "-".join("".join(next(parts, "") for _ in range(length)) for length in _ID)
    return value


def _loaded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("its values are nested too deep") from None


def _without_types(value: Any) -> Any:
    """Return what the journal's form holds, without the names of types."""
    if isinstance(value, list):
        return [_without_types(one) for one in value]
    if not isinstance(value, dict):
        return value
    return (
        _without_types(value["v"])
        if "$" in value and "v" in value
        else {key: _without_types(one) for key, one in value.items()}
    )


PLAIN_SERIALIZER = PlainSerializer()


Allowed = type | tuple[str, str]
"""A class, or its module and its name; the module is imported when a checkpoint needs it."""

_CONSTRUCTORS = (EXT_CONSTRUCTOR_SINGLE_ARG, EXT_CONSTRUCTOR_POS_ARGS, EXT_CONSTRUCTOR_KW_ARGS)
_MODELS = (EXT_PYDANTIC_V1, EXT_PYDANTIC_V2)
_DELTA = 7
_VALUES = (Enum, set, frozenset, deque, PurePath, UUID, Decimal, date, time, timedelta, tzinfo)


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serialiser without imports. `allow`: more types to build."""

    def __init__(self, allow: Iterable[Allowed] = ()) -> None:
        self._allowed = frozenset(_key(one) for one in allow)
        super().__init__(allowed_msgpack_modules=None)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> JsonPlusSerializer:
        """Return a copy that also allows these types. LangGraph calls this with the types of a graph's schemas in its
        strict mode."""
        clone = copy.copy(self)
        clone._allowed = self._allowed | {_key(one) for one in extra_allowlist}
        return clone

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj is None or isinstance(obj, bytes | bytearray):
            return super().dumps_typed(obj)
        return "msgpack", ormsgpack.packb(obj, default=_written, option=MSGPACK_OPTION)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Raises `TypeNotAllowed`."""
        kind, body = data
        if kind != "msgpack":
            return super().loads_typed(data)
        refused: list[TypeNotAllowed] = []  # ormsgpack replaces the error by one of its own

        def built(code: int, held: bytes) -> Any:
            try:
                return self._built(code, held, built)
            except TypeNotAllowed as error:
                refused.append(error)
                raise

        try:
            return ormsgpack.unpackb(body, ext_hook=built, option=ormsgpack.OPT_NON_STR_KEYS)
        except ValueError:
            if refused:
                raise refused[0] from None
            raise

    def _built(self, code: int, data: bytes, hook: Callable[[int, bytes], Any]) -> Any:
        if code == EXT_NUMPY_ARRAY:
            return _of_langgraph(code, data) if "numpy" in sys.modules else _imported_numpy(code, data)
        if code == EXACT:
            return exact(data)
        if code not in (*_CONSTRUCTORS, *_MODELS, EXT_METHOD_SINGLE_ARG, _DELTA):
            raise TypeNotAllowed.form(code)
        held = ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        if code == _DELTA:
            return DeltaSnapshot(held)
        module, name, value, *method = held
        if module in _EARLIER_HOMES and (_HOME, name) in SAFE_MSGPACK_TYPES:
            module = _HOME
        if code == EXT_METHOD_SINGLE_ARG and (module, name, *method) not in SAFE_MSGPACK_METHODS:
            raise TypeNotAllowed(str(module), f"{name}.{'.'.join(map(str, method))}")
        make = self._type(module, name)
        if make is None:
            return reconstruction_fallback(held, AttributeError(name))
        try:
            if (module, name) == (_HOME, "Send"):
                return send_from_args(value)
            return _made(code, make, value, *method)
        except Exception as error:  # noqa: BLE001  as LangGraph's own: the class takes other arguments by now
            return value if code in _MODELS else reconstruction_fallback(held, error)

    def _type(self, module: Any, name: Any) -> Any:
        """Return the type; None if its module is loaded and has no such name, as for a class inside a function."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeNotAllowed(str(module), str(name))
        if (module, name) in SAFE_MSGPACK_TYPES or (module, name) in self._allowed:
            return getattr(importlib.import_module(module), name, None)
        loaded = sys.modules.get(module)
        if loaded is None:
            raise TypeNotAllowed(module, name)
        found = vars(loaded).get(name)
        if not (found is None and "__getattr__" not in vars(loaded)) and not _is_data(found):
            raise TypeNotAllowed(module, name)
        return found


def _written(obj: Any) -> Any:
    """Return LangGraph's form of an object; the journal's form if LangGraph's would come back changed."""
    theirs = msgpack_form(obj)
    cls = type(obj)
    if cls.__module__.startswith("langchain") or not (isinstance(obj, datetime | time) or _is_data(cls)):
        return theirs
    try:
        # the name of a parametrised generic exists only where it has been built already; LangGraph's form finds no
        # class inside another one or inside a function, and would log that
        if not _is_parametrised(cls) and getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls:
            packed = ormsgpack.packb(theirs)
            if same(ormsgpack.unpackb(packed, ext_hook=_permissive, option=ormsgpack.OPT_NON_STR_KEYS), obj):
                return theirs
        return ormsgpack.Ext(EXACT, codec.encode(obj).encode())
    except (NotSerialisable, ValueError):  # neither form keeps everything: use LangGraph's, which its users know
        return theirs


def _is_parametrised(cls: Any) -> bool:
    return (getattr(cls, "__pydantic_generic_metadata__", None) or {}).get("origin") is not None


def exact(data: bytes) -> Any:
    try:
        return codec.decode(data.decode())
    except NotSerialisable as error:
        raise TypeNotAllowed.because(str(error)) from None


def _is_data(found: Any) -> bool:
    """Tell whether it is a class that only holds data."""
    if not isinstance(found, type):
        return False
    if issubclass(found, _VALUES) or dataclasses.is_dataclass(found):
        return True
    if issubclass(found, tuple) and hasattr(found, "_fields"):
        return True
    if hasattr(found, "get_secret_value") and found.__module__.partition(".")[0] == "pydantic":
        return True
    return hasattr(found, "model_fields") or hasattr(found, "__fields__")


def _made(code: int, make: Any, value: Any, *method: str) -> Any:
    if code == EXT_CONSTRUCTOR_SINGLE_ARG:
        return make(value)
    if code == EXT_CONSTRUCTOR_POS_ARGS:
        return make(*value)
    if code == EXT_CONSTRUCTOR_KW_ARGS:
        return make(**value)
    if code == EXT_METHOD_SINGLE_ARG:
        return getattr(make, method[0])(value)
    try:
        return make(**value)
    except Exception:  # noqa: BLE001  a model that was made without being checked
        return (make.construct if code == EXT_PYDANTIC_V1 else make.model_construct)(**value)


def _imported_numpy(code: int, data: bytes) -> Any:
    importlib.import_module("numpy")
    return _of_langgraph(code, data)


_permissive = ext_hook_for(True)
"""For what this process has itself just written: the types are its own."""
_of_langgraph = ext_hook_for(None)
"""LangGraph's own hook, in strict mode, for values that name no type."""


def _key(one: Any) -> tuple[str, str]:
    if isinstance(one, type):
        return one.__module__, one.__name__
    module, name = one
    return str(module), str(name)


_READ = ("null", "empty", "json", "msgpack")
_HOME, _EARLIER_HOMES = "langgraph.types", frozenset({"langgraph.constants", "langgraph.pregel.types"})
"""Where LangGraph's safe types are, and where they were before 0.3: threads of then name them there."""
FINAL = "final:"
"""Before the kind of a journal's result that is an `entrypoint.final`, stored as the list of its value and what it
saves."""


def stored_json(kind: str, data: bytes) -> object:
    """Return a stored value as a JSON value for people: an object by its fields, and unreadable data by its size.

    Raises `ValueError` for damaged data.
    """
    if kind.startswith(FINAL):
        found = stored_json(kind.removeprefix(FINAL), data)
        return dict(zip(("value", "save"), found, strict=True)) if isinstance(found, list) else found
    if kind not in _READ:
        return f"{len(data)} bytes ({kind})"
    return _json(PLAIN_SERIALIZER.loads_typed((kind, data)))


def _json(value: object) -> object:
    """Convert bytes to text and keys to strings: msgpack allows them, JSON does not."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return value


_KINDS = ("null", "bytes", "bytearray", "json", "msgpack")


class PortableSerializer(StrictSerializer):
    """Reads objects as msgpack extensions, and writes what it has read. `keep_exact`: the target is a `Saver`, which
    reads Ramify's own form."""

    def __init__(self, *, keep_exact: bool) -> None:
        super().__init__()
        self._keep_exact = keep_exact

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj is None or isinstance(obj, bytes | bytearray):
            return super().dumps_typed(obj)
        return "msgpack", ormsgpack.packb(obj, default=msgpack_form, option=MSGPACK_OPTION)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Raises `ThreadNotCopied` for values of another serialiser, `TypeNotAllowed` for a type that is not
        loaded."""
        kind, body = data
        if kind not in _KINDS:
            raise ThreadNotCopied.serialised(kind)
        if kind != "msgpack":
            return super().loads_typed(data)
        refused: list[TypeNotAllowed] = []  # ormsgpack replaces the error by one of its own

        def kept(code: int, held: bytes) -> Any:
            if code == EXT_DELTA_SNAPSHOT:  # savers treat such values in their own way
                return DeltaSnapshot(ormsgpack.unpackb(held, ext_hook=kept, option=ormsgpack.OPT_NON_STR_KEYS))
            if code != EXACT or self._keep_exact:
                return ormsgpack.Ext(code, held)
            try:
                return exact(held)
            except TypeNotAllowed as error:
                refused.append(error)
                raise

        try:
            return ormsgpack.unpackb(body, ext_hook=kept, option=ormsgpack.OPT_NON_STR_KEYS)
        except ValueError:
            if refused:
                raise refused[0] from None
            raise
