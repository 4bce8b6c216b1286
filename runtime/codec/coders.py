"""What the modules that encode and decode one kind of value need of the encoder and of the decoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, Protocol

from ramify.runtime.errors import NotSerialisable

SCALARS = frozenset((NoneType, bool, int, float, str))
"""Types of JSON's that are decoded as they are."""


class Encodes(Protocol):
    """An `Encoder`, which describes these attributes."""

    unsure: bool
    by_text: bool
    uncanonical: bool
    size: int
    caching: set[int]
    field_names: dict[Any, frozenset[str]]

    def part(self, value: Any, where: str) -> Any: ...
    def is_plain(self, one: Any) -> bool: ...
    def string(self, value: str) -> Any: ...
    def pairs(self, items: Iterable[tuple[Any, Any]], where: str) -> list[Any]: ...
    def ref(self, kind: Any, where: str) -> Any: ...
    def can_store(self, value: object, where: str) -> bool: ...
    def encoded_and_decoded(self, value: object, where: str) -> tuple[Any, Any]: ...


class Decodes(Protocol):
    """A `Decoder`, which describes these attributes."""

    models: dict[Any, tuple[Mapping[str, Any], Mapping[str, Any]]]

    def decode(self, value: Any) -> Any: ...
    def items(self, body: Any) -> list[Any]: ...
    def pairs(self, body: Any) -> list[tuple[Any, Any]]: ...
    def type_of(self, ref: Any) -> Any: ...


def checked(cls: Any, base: type, kind: str) -> Any:
    """Return a class that a stored value names. Raises `NotSerialisable` if it is no subclass of `base`."""
    if not isinstance(cls, type) or not issubclass(cls, base):
        raise not_any_more(cls, kind)
    return cls


def not_any_more(cls: Any, kind: str) -> NotSerialisable:
    """Return the error for a stored value whose class is not of its kind now."""
    return NotSerialisable(f"a stored value names {cls!r} as a {kind}, but it is not one now")
