"""Which nodes of a LangGraph graph may hand on to nodes that no edge names: by a Command or a Send of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ramify.compiler.frontend.sources import closed_over
from ramify.compiler.spec import Machine, Spec

_ROUTING = frozenset({"Command", "Send"})


def with_routes(spec: Spec, graph: Any) -> Spec:
    """`spec` was read from `graph`. A node whose code cannot be had may lead anywhere."""
    if not isinstance(spec.body, Machine):
        return spec
    builder = getattr(graph, "builder", graph)
    if not hasattr(builder, "branches"):  # an entrypoint: nothing follows its one node
        return spec
    nodes = [replace(node, routes=any(map(_routes, _codes(builder, node.run.step)))) for node in spec.body.nodes]
    return replace(spec, body=replace(spec.body, nodes=tuple(nodes)))


def _codes(builder: Any, node: str) -> Iterator[Callable[..., Any] | None]:
    """The functions that decide what follows a node: its own, and its branches'."""
    branches = (branch.path for branch in builder.branches.get(node, {}).values())
    for runnable in (builder.nodes[node].runnable, *branches):
        action = getattr(runnable, "func", None) or getattr(runnable, "afunc", None) or runnable
        yield action if isinstance(action, FunctionType) else None  # a method may call what its object holds


def _routes(function: Callable[..., Any] | None) -> bool:
    """Whether it may name the next node. False only where all that it uses from outside are builtins, plain values
    and modules of the standard library."""
    if function is None or hasattr(function, "__wrapped__"):
        return True
    closed = closed_over(function)
    if closed.keys() != set(function.__code__.co_freevars):  # one is bound later, to nobody knows what
        return True
    outer = {**function.__globals__, **closed}
    names = set(_names(function.__code__))
    return not _ROUTING.isdisjoint(names) or not all(_is_plain(outer[name]) for name in names if name in outer)


def _is_plain(value: object) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in sys.stdlib_module_names
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def _names(code: CodeType) -> Iterator[str]:
    """What it and the comprehensions and functions in it take from outside of it."""
    yield from (*code.co_names, *code.co_freevars)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)
