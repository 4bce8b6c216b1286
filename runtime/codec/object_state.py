"""The parts and the state of objects, for the encoder: find cycles, count distinct parts, read slots and fields."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any


def holds_itself(value: object, what: str) -> str | None:
    """Return the place of an object in the value that contains itself; None if there is none."""
    around, seen = set[int](), set[int]()  # each object is visited once: shared ones may be reached in 2^n ways
    todo: list[tuple[object, str, int]] = [(value, what, 0)]
    while todo:
        one, where, depth = todo.pop()
        if depth < 0:  # all of its parts have been visited
            around.discard(id(one))
            continue
        if id(one) in around:
            return where
        if id(one) in seen or depth >= sys.getrecursionlimit():
            continue
        around.add(id(one))
        seen.add(id(one))
        todo.append((one, where, -1))
        todo += ((each, f"{where}{part}", depth + 1) for part, each in reversed(list(parts_of(one))))
    return None


def distinct_parts(value: object) -> int:
    """Return the number of distinct objects in the value."""
    seen, todo = set[int](), [value]
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            todo += (each for _, each in parts_of(one))
    return len(seen)


def parts_of(one: object) -> Iterator[tuple[str, Any]]:
    """Yield the direct parts of an object, each with its place, such as `[3]` or `.name`."""
    if isinstance(one, Mapping):
        yield from ((f"[{key!r}]", each) for key, each in one.items())
    elif isinstance(one, list | tuple | deque):
        yield from ((f"[{at}]", each) for at, each in enumerate(one))
    elif dataclasses.is_dataclass(one) or hasattr(type(one), "__pydantic_validator__"):
        names = [field.name for field in dataclasses.fields(one)] if dataclasses.is_dataclass(one) else []
        state = {name: getattr(one, name, None) for name in names} | getattr(one, "__dict__", {})
        yield from ((f".{name}", each) for name, each in state.items())
