"""The summary of a result is the beginning of its text. The text of a long value is not made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ramify.runtime.execution.step_outcomes import one_line


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    data: Any
    hidden: int = field(default=0, repr=False)


@dataclass
class Told:
    data: Any

    def __str__(self) -> str:
        return f"told {self.data}"


class Unread:
    def __repr__(self) -> str:
        raise AssertionError("this far no summary goes")


VALUES: list[Any] = [
    "x" * 500,
    "first\nsecond" * 500,
    bytes(range(256)) * 50,
    bytearray(b"abc" * 500),
    list(range(500)),
    tuple(range(500)),
    (1,),
    dict.fromkeys(range(500), "text" * 50),
    {"a": {"b": ["x" * 500] * 500}},
    {1, 2},
    Found("n" * 20, {"deep": b"y" * 500}),
    [Found("n", None)] * 500,
    Told("x" * 500),
    "short",
    1.5,
    [],
    {},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_a_summary_is_the_beginning_of_the_text(value: Any) -> None:
    line = str(value).splitlines()[0]
    assert one_line(value) == (line if len(line) <= 80 else f"{line[:79]}…")


@pytest.mark.parametrize(
    "value",
    [
        [0] * 200 + [Unread()],
        {n: n for n in range(200)} | {"last": Unread()},
        Found("n", [0] * 200 + [Unread()]),
        {"a": (0,) * 200 + (Unread(),)},
    ],
    ids=["list", "dict", "dataclass", "nested"],
)
def test_what_no_summary_shows_is_not_written(value: Any) -> None:
    assert one_line(value).endswith("…")
