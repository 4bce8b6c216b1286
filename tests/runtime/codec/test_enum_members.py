"""A stored enum member is found by its value, and its name says whether the value still means the same."""

from __future__ import annotations

import enum
import itertools

from ramify.runtime.codec import codec


class Lazy:
    """A text that is translated when it is shown."""


class Titled(enum.Enum):
    A = 1

    @property
    def name(self) -> Lazy:  # type: ignore[override]
        return Lazy()


class Counted(enum.Enum):
    A = 1
    B = 2

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"call {next(_CALLS)}"


_CALLS = itertools.count()


def test_a_class_may_have_a_name_property_of_its_own() -> None:
    assert codec.decode(codec.encode(Titled.A)) is Titled.A
    assert codec.decode(codec.encode([Counted.A, Counted.B])) == [Counted.A, Counted.B]
