"""A stored enum member is found by its value, and its name says whether the value still means the same."""

from __future__ import annotations

import enum
import itertools
from http import HTTPStatus

import pytest

from ramify.runtime.codec import codec
from ramify.runtime.errors import NotSerialisable


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


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2
    RUN = 8
    KEEP = 12


HERE = f"{__name__}:Access"


def stored(ref: str, value: int, name: str) -> str:
    return f'{{"$":"enum","t":"{ref}","v":{value},"aside":{{"name":"{name}"}}}}'


@pytest.mark.parametrize("name", ["UNPROCESSABLE_CONTENT", "UNPROCESSABLE_ENTITY"])
def test_members_of_pythons_own_enums_have_other_names_in_other_versions(name: str) -> None:
    assert codec.decode(stored("http:HTTPStatus", 422, name)) is HTTPStatus(422)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (9, "READ|8"),  # when 8 had no name
        (3, "READ|WRITE"),
        (3, "BOTH"),  # which had a name of its own
        (33, "READ|32"),
        (13, "READ|KEEP"),
    ],
)
def test_a_flag_is_found_by_its_bits(value: int, name: str) -> None:
    assert codec.decode(stored(HERE, value, name)) == Access(value)


@pytest.mark.parametrize(
    ("value", "name"), [(1, "WRITE"), (2, "GONE"), (3, "READ|GONE"), (3, "READ|8"), (9, "READ|WRITE"), (3, "KEEP")]
)
def test_a_flag_whose_names_have_other_bits_is_refused(value: int, name: str) -> None:
    with pytest.raises(NotSerialisable, match="which now is Access"):
        codec.decode(stored(HERE, value, name))
