"""Types of which no value can be kept: neither a journal nor a checkpoint can write a lock or a running generator."""

from __future__ import annotations

import asyncio
import collections.abc
import contextvars
import io
import socket
import subprocess
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.resolve import is_world
from ramify.compiler.frontend.sources import Function

_UNKEPT: tuple[type, ...] = (
    collections.abc.Coroutine,
    collections.abc.Generator,
    collections.abc.AsyncGenerator,
    io.IOBase,
    typing.IO,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Thread,
    threading.Event,
    threading.Condition,
    asyncio.Future,
    asyncio.Lock,
    asyncio.Event,
    asyncio.Queue,
    contextvars.ContextVar,
    socket.socket,
    subprocess.Popen,
    types.ModuleType,
    types.FunctionType,
    types.FrameType,
    types.TracebackType,
)


def refuse_unkept(step: str, function: Function, code: Callable[..., Any]) -> None:
    """Raises WorkflowError for a step that takes or gives what the journal cannot keep."""
    for name, hint in hints_of(code).items():
        found = unkept(hint)
        if found is None or (name != "return" and found in ("Sandbox", "SyncSandbox")):
            continue
        said = "returns" if name == "return" else f"takes, as {name},"
        raise WorkflowError(
            f"step {step} {said} a {found}, which the journal cannot keep",
            where=function.where(),
            mend="hand over what it is made from (a path, a list, a name)",
        )


def unkept(hint: Any) -> str | None:
    """The part of an annotation that no value of can be kept; None where each may be."""
    origin = typing.get_origin(hint)
    if origin in (typing.Literal, collections.abc.Callable) or hint in (typing.Callable, collections.abc.Callable):
        return None if origin is typing.Literal else "Callable"
    if origin is typing.Annotated:
        return unkept(typing.get_args(hint)[0])
    kind = origin or hint
    if kind in (threading.Lock, threading.RLock):  # functions, in some versions of Python
        return "Lock"
    if isinstance(kind, type) and (is_world(kind) or issubclass(kind, _UNKEPT)):
        return kind.__name__
    if isinstance(hint, typing.TypeVar):
        return None
    return next((found for part in typing.get_args(hint) if (found := unkept(part)) is not None), None)


def hints_of(thing: Any) -> dict[str, Any]:
    """Annotations as objects; those that only a type checker can see are left out."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
