"""Steps and workflows where they cannot be: a workflow in a step, either of them in a node of LangGraph, or in a
workflow with nobody who waits for it."""

from __future__ import annotations

import ast
import asyncio
import collections.abc
import contextvars
import datetime
import inspect
import io
import os
import pathlib
import platform
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.python.code_parts import codes_of
from ramify.compiler.frontend.python.modules import dependencies
from ramify.compiler.frontend.python.name_resolution import is_world, step_info, workflow_info
from ramify.compiler.frontend.python.sources import Function, Sources, within


def refuse_workflows(step: str, function: Function, nodes: Iterable[ast.AST]) -> None:
    """Raises WorkflowError where a step calls a workflow: a step is one operation on one world."""
    for node in within(nodes):
        if isinstance(node, ast.Call) and workflow_info(function.names(node.func)) is not None:
            raise WorkflowError(
                f"step {step} calls the workflow {ast.unparse(node.func)}",
                where=function.where(node),
                mend="call it from a workflow, or put what the two share into a plain async function",
            )


def refuse_step_calls(node: str, function: Function) -> None:
    """Raises WorkflowError where a LangGraph node calls a step or a workflow: those belong to a workflow's run."""
    for call in ast.walk(function.node):
        if not isinstance(call, ast.Call):
            continue
        found = function.names(call.func)
        kind = "step" if step_info(found) else "workflow" if workflow_info(found) else None
        if kind is not None:
            raise WorkflowError(
                f"node {node} calls the {kind} {ast.unparse(call.func)}, which is for workflows",
                where=function.where(call),
                mend="call a plain function, or add the step itself as a node",
            )


def refuse_unentered(function: Function, call: ast.Call) -> None:
    """Raises WorkflowError: a fork has branches inside its block alone."""
    called = f"{ast.unparse(call.func)}(...)"
    raise WorkflowError(
        f"{called} is not entered, so nothing is forked",
        where=function.where(call),
        mend=f"write `async with {called} as branches:`, and what is done on them inside",
    )


def refuse_dropped(function: Function, call: ast.Call) -> None:
    """Raises WorkflowError: what is async and awaited by nobody never begins."""
    called = f"{ast.unparse(call.func)}(...)"
    raise WorkflowError(
        f"{called} is called without `await`, and would never run",
        where=function.where(call),
        mend=f"write `await {called}`, or hand it to `asyncio.gather` with what is to run beside it",
    )


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


def refuse_unstorable(step: str, function: Function, code: Callable[..., Any]) -> None:
    """Raises WorkflowError for a step that takes or gives what the journal cannot keep."""
    for name, hint in type_hints_of(code).items():
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


def type_hints_of(thing: Any) -> dict[str, Any]:
    """Annotations as objects; those that only a type checker can see are left out."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


_CLOCK = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "localtime", "gmtime", "ctime", "strftime")
_VARYING: tuple[tuple[object, tuple[str, ...], str], ...] = (
    (time, _CLOCK, "the clock"),
    (datetime.datetime, ("now", "utcnow", "today"), "the clock"),
    (datetime.date, ("today",), "the clock"),
    (uuid, ("uuid1", "uuid4"), "chance"),
    (os, ("urandom", "getrandom"), "chance"),
    (os, ("environ", "getenv", "environb", "getenvb"), "the host's environment"),
    (os.path, ("expanduser", "expandvars"), "the host's environment"),
    (pathlib.Path, ("home", "expanduser"), "the host's environment"),
    (os, ("getcwd", "getcwdb", "getpid", "getppid"), "the host's process"),
    (pathlib.Path, ("cwd",), "the host's process"),
    (sys, ("argv",), "the host's process"),
    (socket, ("gethostname", "getfqdn"), "the host's name"),
    (platform, ("node",), "the host's name"),
)


def refuse_nondeterministic(step: str, function: Function, sources: Sources) -> None:
    """For a step that is reused by state: raises WorkflowError where it reads what its key does not hold."""
    for place, nodes in _used(function, sources):
        for node, what in _reads(place, nodes):
            raise WorkflowError(
                f"step {step} is declared reuse=True, but it reads {what} by `{ast.unparse(node)}`, which its key "
                "lacks",
                where=place.where(node),
                mend="hand the value in as an argument, or take reuse=True away",
            )


def _used(function: Function, sources: Sources) -> Iterator[tuple[Function, Iterable[ast.AST]]]:
    """The code of a step by where it stands: of its own module, and of the project's others."""
    yield function, dependencies(function, sources)
    codes = codes_of(sources)
    for key in sorted(codes.closure([codes.part(function)], into_steps=True)):
        part = codes.parts[key]
        if part.module.path != function.path:
            there = replace(function, module=part.module.name, path=part.module.path, outer=part.module.values)
            yield there, part.nodes


def _reads(function: Function, nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, str]]:
    nodes = list(nodes)
    function = replace(function, outer={**function.outer, **_imported(nodes)})
    known = ((home, name, what) for home, names, what in _VARYING for name in names if hasattr(home, name))
    kinds = {id(_attribute(home, name)): what for home, name, what in known}
    for node in (*within(nodes), *_constants(nodes)):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            found = _named(function, node)
            if found is not None and id(found) in kinds:
                yield node, kinds[id(found)]
            elif _is_chance(found):
                yield node, "chance"


def _named(function: Function, node: ast.Attribute | ast.Name) -> object | None:
    """What a dotted name is; also a method of what a class is called for, as in `Path("~").expanduser`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
        made = function.names(node.value.func)
        return inspect.getattr_static(made, node.attr, None) if isinstance(made, type) else None
    return function.names(node)


def _constants(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All that is said of a module's constants: a key holds how one is made, and not what came of it."""
    for node in nodes:
        if isinstance(node, ast.stmt) and not isinstance(node, _NAMES_CODE):
            yield from ast.walk(node)


_NAMES_CODE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def _imported(nodes: Iterable[ast.AST]) -> dict[str, object]:
    """What functions import of the modules above, and how they name it."""
    homes = (datetime, os, pathlib, platform, random, secrets, socket, sys, time, uuid)
    modules: dict[str, ModuleType] = {home.__name__: home for home in homes} | {"os.path": os.path}
    found: dict[str, object] = {}
    for node in within(nodes):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                if bound in modules:
                    found[alias.asname or bound] = modules[bound]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in modules:
            home = modules[node.module]
            found |= {alias.asname or alias.name: getattr(home, alias.name, None) for alias in node.names}
    return found


def _is_chance(found: object) -> bool:
    """A function of `secrets`, or of `random` on its own hidden generator, which nobody seeds for this step."""
    if isinstance(found, FunctionType):
        return found.__module__ == "secrets"
    return getattr(found, "__self__", None) is random.random.__self__ and callable(found)  # type: ignore[attr-defined]


def _attribute(home: object, name: str) -> object:
    return getattr(home, name) if isinstance(home, ModuleType) else inspect.getattr_static(home, name)
