"""Loops without end in helpers that run as tasks of their own, such as workers of a queue: a cancellation ends them.

workers = [asyncio.create_task(worker(queue)) for _ in range(3)]
await queue.join()
for worker in workers:
    worker.cancel()
"""

from __future__ import annotations

import ast
from dataclasses import replace

from ramify.compiler.spec import (
    Body,
    Conditional,
    EnterBranch,
    ExitKind,
    Fork,
    Inlined,
    Item,
    Leave,
    Loop,
    Try,
    parts,
)


def is_begun_apart(definition: ast.AST, call: ast.Call, awaits: dict[ast.Call, ast.Await]) -> bool:
    """Whether the call of an async helper is not awaited where it stands."""
    return isinstance(definition, ast.AsyncFunctionDef) and call not in awaits


def with_exits(body: Body) -> Body:
    """Return the items with an exit for each loop that no statement leaves."""
    return tuple(map(_with_exit, body))


def _with_exit(item: Item) -> Item:
    match item:
        case Loop(test, body, orelse, endless):
            return Loop(with_exits(test), with_exits(body), with_exits(orelse), endless and _is_left(body))
        case Conditional(arms):
            return Conditional(tuple(map(with_exits, arms)))
        case Try(body, handlers, orelse, final):
            return Try(with_exits(body), tuple(map(with_exits, handlers)), with_exits(orelse), with_exits(final))
        case Fork() | EnterBranch() | Inlined():
            return replace(item, body=with_exits(item.body))
        case _:
            return item


def _is_left(body: Body) -> bool:
    return any(
        item.exit is not ExitKind.CONTINUE
        if isinstance(item, Leave)
        else not isinstance(item, Inlined) and any(_is_left(part) for _, part in parts(item))
        for item in body
    )
