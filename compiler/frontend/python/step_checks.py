"""Steps and workflows that are refused: where they are called wrongly, or cannot be stored or reused.

- a workflow called in a step; a step or a workflow called in a node of LangGraph; a call that nobody awaits
- a parameter or result of a type that neither a journal nor a checkpoint can store, such as a lock
- a reused step that reads what its reuse key does not cover: the clock, random numbers, the host's environment

The last check reads the syntax of the step and of all code of the project that it uses, constants included, with
names resolved to objects. It does not see what packages of other projects do, or names known only at run time.
"""

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
from ramify.compiler.frontend.python.code_parts import CodeIndex
from ramify.compiler.frontend.python.modules import dependencies
from ramify.compiler.frontend.python.name_resolution import is_world, step_info, workflow_info
from ramify.compiler.frontend.python.sources import Function, Sources, walk_definitions

# Calls in the wrong place


def refuse_workflow_calls(step: str, function: Function, nodes: Iterable[ast.AST]) -> None:
    """Refuse a step that calls a workflow: a step is one operation on one world.

    Raises:
        WorkflowError: The step, or code of its module that it uses, calls a workflow.
    """
    for node in walk_definitions(nodes):
        if isinstance(node, ast.Call) and workflow_info(function.lookup(node.func)) is not None:
            raise WorkflowError(
                f"step {step} calls the workflow {ast.unparse(node.func)}",
                where=function.where(node),
                mend="call it from a workflow, or put what the two share into a plain async function",
            )


def refuse_step_calls(node: str, function: Function) -> None:
    """Refuse a LangGraph node that calls a step or a workflow: those belong to the run of a workflow.

    Raises:
        WorkflowError: The node's function calls one.
    """
    for call in ast.walk(function.node):
        if not isinstance(call, ast.Call):
            continue
        found = function.lookup(call.func)
        kind = "step" if step_info(found) else "workflow" if workflow_info(found) else None
        if kind is not None:
            raise WorkflowError(
                f"node {node} calls the {kind} {ast.unparse(call.func)}, which only workflows can call",
                where=function.where(call),
                mend="call a plain function, or add the step itself as a node",
            )


def refuse_unentered_fork(function: Function, call: ast.Call) -> None:
    """Raise WorkflowError for a fork without `with`: a fork has branches only inside its block."""
    called = f"{ast.unparse(call.func)}(...)"
    raise WorkflowError(
        f"{called} is not entered, so nothing is forked",
        where=function.where(call),
        mend=f"write `async with {called} as branches:`, and use the branches inside the block",
    )


def refuse_unawaited(function: Function, call: ast.Call) -> None:
    """Raise WorkflowError for an async call that nobody awaits, and that therefore never starts."""
    called = f"{ast.unparse(call.func)}(...)"
    raise WorkflowError(
        f"{called} is called without `await`, and would never run",
        where=function.where(call),
        mend=f"write `await {called}`, or pass it to `asyncio.gather` with the calls that run in parallel",
    )


# Types that cannot be stored

_UNSTORABLE: tuple[type, ...] = (
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
    """Refuse a step with a parameter or result that the journal cannot store.

    Raises:
        WorkflowError: An annotation names such a type.
    """
    for name, hint in type_hints_of(code).items():
        found = unstorable_type(hint)
        if found is None or (name != "return" and found in ("Sandbox", "SyncSandbox")):
            continue
        verb = "returns" if name == "return" else f"takes, as {name},"
        raise WorkflowError(
            f"step {step} {verb} a {found}, which the journal cannot store",
            where=function.where(),
            mend="pass what it is made from (a path, a list, a name)",
        )


def unstorable_type(hint: Any) -> str | None:
    """Return the name of a type in an annotation whose values can never be stored; None if there is none."""
    origin = typing.get_origin(hint)
    if origin in (typing.Literal, collections.abc.Callable) or hint in (typing.Callable, collections.abc.Callable):
        return None if origin is typing.Literal else "Callable"
    if origin is typing.Annotated:
        return unstorable_type(typing.get_args(hint)[0])
    kind = origin or hint
    if kind in (threading.Lock, threading.RLock):  # functions, in some versions of Python
        return "Lock"
    if isinstance(kind, type) and (is_world(kind) or issubclass(kind, _UNSTORABLE)):
        return kind.__name__
    if isinstance(hint, typing.TypeVar):
        return None
    return next((found for part in typing.get_args(hint) if (found := unstorable_type(part)) is not None), None)


def type_hints_of(thing: Any) -> dict[str, Any]:
    """Return annotations as objects; empty if one of them exists for type checkers only."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


# Inputs that a reuse key does not cover

_CLOCK = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "localtime", "gmtime", "ctime", "strftime")
_NONDETERMINISTIC: tuple[tuple[object, tuple[str, ...], str], ...] = (
    (time, _CLOCK, "the clock"),
    (datetime.datetime, ("now", "utcnow", "today"), "the clock"),
    (datetime.date, ("today",), "the clock"),
    (uuid, ("uuid1", "uuid4"), "random numbers"),
    (os, ("urandom", "getrandom"), "random numbers"),
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
    """Refuse a step that is reused by state and reads what its key does not cover.

    Raises:
        WorkflowError: The step, or code that it uses, reads such an input.
    """
    for place, nodes in _code_used(function, sources):
        for node, what in _reads(place, nodes):
            raise WorkflowError(
                f"step {step} is declared reuse=True, but it reads {what} by `{ast.unparse(node)}`, which its key "
                "does not cover",
                where=place.where(node),
                mend="pass the value as an argument, or remove reuse=True",
            )


def _code_used(function: Function, sources: Sources) -> Iterator[tuple[Function, Iterable[ast.AST]]]:
    """Yield the code that a step uses, first in its own module, then in other modules of the project."""
    yield function, dependencies(function, sources)
    index = sources.analysis(CodeIndex)
    for key in sorted(index.closure([index.part(function)], into_steps=True)):
        part = index.parts[key]
        if part.module.path != function.path:
            place = replace(function, module=part.module.name, path=part.module.path, outer=part.module.values)
            yield place, part.nodes


def _reads(function: Function, nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, str]]:
    nodes = list(nodes)
    function = replace(function, outer={**function.outer, **_local_imports(nodes)})
    known = ((home, name, what) for home, names, what in _NONDETERMINISTIC for name in names if hasattr(home, name))
    kinds = {id(_attribute(home, name)): what for home, name, what in known}
    for node in (*walk_definitions(nodes), *_constants(nodes)):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            found = _lookup(function, node)
            if found is not None and id(found) in kinds:
                yield node, kinds[id(found)]
            elif _is_random(found):
                yield node, "random numbers"


def _lookup(function: Function, node: ast.Attribute | ast.Name) -> object | None:
    """Return what a dotted name denotes, methods of a new object included, as in `Path("~").expanduser`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
        made = function.lookup(node.value.func)
        return inspect.getattr_static(made, node.attr, None) if isinstance(made, type) else None
    return function.lookup(node)


def _constants(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of statements that make constants: a key covers such code, but not the value it gives."""
    for node in nodes:
        if isinstance(node, ast.stmt) and not isinstance(node, _DEFINES_CODE):
            yield from ast.walk(node)


_DEFINES_CODE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def _local_imports(nodes: Iterable[ast.AST]) -> dict[str, object]:
    """Return what functions import of the modules in the table above, by local name."""
    homes = (datetime, os, pathlib, platform, random, secrets, socket, sys, time, uuid)
    modules: dict[str, ModuleType] = {home.__name__: home for home in homes} | {"os.path": os.path}
    found: dict[str, object] = {}
    for node in walk_definitions(nodes):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                if bound in modules:
                    found[alias.asname or bound] = modules[bound]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in modules:
            home = modules[node.module]
            found |= {alias.asname or alias.name: getattr(home, alias.name, None) for alias in node.names}
    return found


def _is_random(found: object) -> bool:
    """Return whether this is a function of `secrets`, or of `random` on its global generator, which is not seeded."""
    if isinstance(found, FunctionType):
        return found.__module__ == "secrets"
    generator = random.random.__self__  # type: ignore[attr-defined]
    return getattr(found, "__self__", None) is generator and callable(found)


def _attribute(home: object, name: str) -> object:
    return getattr(home, name) if isinstance(home, ModuleType) else inspect.getattr_static(home, name)
