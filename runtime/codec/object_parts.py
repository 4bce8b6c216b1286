"""The parts of objects: how encoded ones name them; find cycles, count, compare; refuse what cannot be stored."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Awaitable, Iterator, Mapping
from datetime import datetime, time
from decimal import Decimal
from typing import Any

from ramify.runtime.errors import NotSerialisable

TAG = "$"
"""The key that marks an encoded object: `{"$": kind, …}`."""
ASIDE = "aside"
"""The part of an encoded object that is decoded but does not belong to its digest: cached properties, notes of
errors, and other state that earlier versions did not store, so that the digests which they recorded are found."""


def without_aside(encoded: Any) -> Any:
    """Return an encoded value without the state that does not belong to its digest."""
    if isinstance(encoded, list):
        return [without_aside(one) for one in encoded]
    if not isinstance(encoded, dict):
        return encoded
    return {key: without_aside(one) for key, one in encoded.items() if key != ASIDE or TAG not in encoded}


def find_cycle(value: object, what: str) -> str | None:
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


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same types, in all their parts."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if hasattr(type(one), "__pydantic_validator__") and hasattr(one, "model_dump"):
        return same(one.__dict__, other.__dict__) and one.model_fields_set == other.model_fields_set
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name, None), getattr(other, name, None)) for name in names)
    if isinstance(one, float | complex | Decimal):
        return repr(one) == repr(other)
    if isinstance(one, datetime | time):
        zones = [(type(each.tzinfo), str(each.tzinfo), each.fold) for each in (one, other)]
        return one.replace(tzinfo=None) == other.replace(tzinfo=None) and zones[0] == zones[1]
    return bool(one == other)


def refusal(value: object, where: str) -> NotSerialisable:
    """Return the error for a value that cannot be stored, with advice."""
    cls = type(value)
    if isinstance(value, Awaitable):
        what = getattr(value, "__qualname__", cls.__qualname__)
        if hasattr(cls, "__aenter__"):
            return NotSerialisable(
                f"{where} is a context manager ({what}), not the value inside it: write `async with` around "
                "the call, and pass the value"
            )
        return NotSerialisable(f"{where} is an awaitable ({what}), not its result: write `await`")
    if hasattr(cls, "get_secret_value"):
        return NotSerialisable(
            f"{where} is a {cls.__module__}.{cls.__qualname__}: the journal stores no secrets. Read it inside the "
            "step that uses it"
        )
    return NotSerialisable(
        f"{where} is a {cls.__module__}.{cls.__qualname__}, which the journal cannot keep. "
        "Pass JSON values, dataclasses, enums, paths, bytes, tuples, sets or pydantic models across a step"
    )
