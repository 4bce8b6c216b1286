"""Walking a value's own parts: does it hold itself, is it far larger written out than it is in memory?"""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any


def holds_itself(value: object, what: str) -> str | None:
    """Where, in the value, one stands that is around itself; None where none was found."""
    around, seen = set[int](), set[int]()  # each is gone through once: what is shared may be reached in 2^n ways
    todo: list[tuple[object, str, int]] = [(value, what, 0)]
    while todo:
        one, where, depth = todo.pop()
        if depth < 0:  # all inside it was gone through
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
    """How many objects it is made of, each counted once."""
    seen, todo = set[int](), [value]
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            todo += (each for _, each in parts_of(one))
    return len(seen)


def parts_of(one: object) -> Iterator[tuple[str, Any]]:
    if isinstance(one, Mapping):
        yield from ((f"[{key!r}]", each) for key, each in one.items())
    elif isinstance(one, list | tuple | deque):
        yield from ((f"[{at}]", each) for at, each in enumerate(one))
    elif dataclasses.is_dataclass(one) or hasattr(type(one), "__pydantic_validator__"):
        names = [field.name for field in dataclasses.fields(one)] if dataclasses.is_dataclass(one) else []
        state = {name: getattr(one, name, None) for name in names} | getattr(one, "__dict__", {})
        yield from ((f".{name}", each) for name, each in state.items())
