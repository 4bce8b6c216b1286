"""What a step reads that its key does not hold: the clock, chance, the host's environment.

Read from the syntax of the step and of what it uses, through all modules of the project that names lead to, constants
that are made of such a thing when their module is imported included, names resolved to the objects that they are.
Not seen: what other projects' packages do, and names that are only known while it runs.
"""

from __future__ import annotations

import ast
import datetime
import inspect
import os
import pathlib
import platform
import random
import secrets
import socket
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.code import codes_of
from ramify.compiler.frontend.digest import dependencies
from ramify.compiler.frontend.sources import Function, Sources, within

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


def refuse_varying(step: str, function: Function, sources: Sources) -> None:
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
