"""Long values: digests in pieces equal those of the whole text, and characters beyond ASCII may stay as they are."""

from __future__ import annotations

import functools
import hashlib
import json
import weakref
from collections.abc import Iterator
from typing import Annotated, Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.runtime.codec import codec, encoded_value, encoder, json_parts, long_texts
from ramify.runtime.codec.canonical import canonical
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.codec.long_texts import ascii_form, has_surrogates
from ramify.runtime.codec.object_parts import same

CHARACTERS = st.one_of(
    st.characters(codec=None), st.sampled_from('"\\/\0\n\x1f\x7f é€😀{}:$'), st.sampled_from("\ud83d\ude00\udc80")
)
TEXTS = st.text(CHARACTERS, max_size=40)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.binary(max_size=40)
KEYS = TEXTS | st.integers() | st.sampled_from(["$", "aside"])
VALUES = st.recursive(
    SCALARS,
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(KEYS, v, max_size=3)
        | st.tuples(v)
        | st.sets(TEXTS | st.binary(max_size=40), max_size=3)
        | st.builds(bytearray, st.binary(max_size=40))
    ),
    max_leaves=6,
)


@pytest.fixture(autouse=True, scope="module")
def short_is_long() -> Iterator[None]:
    """Let texts of a few characters count as long ones."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (encoded_value, encoder, json_parts, long_texts):
            patch.setattr(module, "PIECE", 7)
        patch.setattr(encoded_value, "_DIVIDED", 7)
        patch.setattr(json_parts, "_IN_PLACE", 20)
        patch.setattr(long_texts, "_LIFTED", 16)
        patch.setattr(long_texts, "_DENSE", 0)
        patch.setattr(long_texts, "_BYTES", 6)
        patch.setattr(long_texts, "_BASE64", 8)
        yield


def whole(text: str) -> str:
    """The digest of a parsed text, as the first version computed it."""
    value = canonical(json.loads(text))
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@given(VALUES)
def test_the_digest_of_pieces_is_that_of_the_whole(value: Any) -> None:
    text = codec.encode(value)
    assert text.isascii()
    assert codec.decode(text) == value
    assert codec.digest_text(text) == whole(text)
    assert codec.digest_as_given(text) == hashlib.sha256(text.encode()).hexdigest()


@given(VALUES)
def test_a_text_with_unicode_means_the_same(value: Any) -> None:
    text, in_ascii = codec.encode(value, unicode=True), codec.encode(value)
    assert codec.decode(text) == value
    assert not has_surrogates(text)
    assert codec.encode(codec.decode(text)) == in_ascii
    assert codec.digest_text(text) == whole(in_ascii)
    assert codec.digest_as_given(text) == codec.digest_as_given(in_ascii)


@pytest.mark.parametrize("kept", ["é" * 20, "€" * 20, "😀" * 20, 'é"' * 20])
def test_characters_stay_where_that_is_shorter(kept: str) -> None:
    assert kept[:2].replace('"', '\\"') in codec.encode([kept], unicode=True)
    assert codec.encode([kept]).isascii()


@pytest.mark.parametrize("odd", ["é" * 20 + "\udc80", "\ud83d\ude00" + "é" * 20, "x" * 90 + "€"])
def test_other_long_strings_are_in_ascii(odd: str) -> None:
    text = codec.encode([odd], unicode=True)
    assert text.isascii()
    assert codec.decode(text) == [odd]


class Cached(pydantic.BaseModel):
    said: str = "\0lifted 0"

    @functools.cached_property
    def refused(self) -> list[object]:
        return [b"x" * 20, object()]


class Odd:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


class Refused(pydantic.BaseModel):
    """Stored as its own JSON, since only pydantic can write `odd`."""

    said: str = "\0lifted 0"
    long: bytes = b"x" * 20
    odd: Annotated[Any, pydantic.PlainValidator(lambda _: Odd()), pydantic.PlainSerializer(lambda _: 0)] = Odd()


def cached() -> Cached:
    made = Cached()
    assert made.refused
    return made


@pytest.mark.parametrize(
    "value",
    [cached(), Refused(), [AttributeError("x", name="n", obj=b"x" * 20), "\0lifted 0"]],
    ids=["cached", "model", "error"],
)
def test_bytes_of_a_part_that_is_not_kept_are_not_put_into_a_string(value: Any) -> None:
    """A string of the user's that reads like a mark was replaced by the bytes."""
    again = codec.decode(codec.encode(value))
    assert (again.said if isinstance(value, pydantic.BaseModel) else again[1]) == "\0lifted 0"


@given(VALUES, st.booleans())
def test_one_encoding_gives_the_text_the_digest_and_copies(value: Any, unicode: bool) -> None:
    text = codec.encode(value, unicode=unicode)
    for asked in (("text", "digest"), ("digest", "text"), ("digest",)):
        encoded = Encoded(value, unicode=unicode)
        for name in asked:
            assert getattr(encoded, name)() == (text if name == "text" else whole(codec.encode(value)))
        for again in (encoded.value(), encoded.compact().value(), encoded.take()):
            assert same(again, value)
        assert Encoded.of_text(text).digest() == encoded.digest()


def test_an_encoded_value_does_not_keep_the_value() -> None:
    """Its objects, apart from strings and bytes, would be held a second time for as long as a step works."""
    value = [Cached()]
    kept, encoded = weakref.ref(value[0]), Encoded(value)
    del value
    assert kept() is None
    assert encoded.value() == [Cached()]


@given(TEXTS, st.integers(1, 9))
def test_the_ascii_form_of_pieces_is_what_json_writes(text: str, size: int) -> None:
    written = json.dumps(text, ensure_ascii=False)
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    assert b"".join(map(ascii_form, pieces)) == json.dumps(text).encode()


@pytest.mark.parametrize(
    "value",
    [
        {1: "x" * 20, 2: "y" * 20},
        {("b" * 20,): 1, ("a" * 20,): 2},
        {b"b" * 20: "z" * 20, b"a" * 20: "z" * 20},
        ["\0lifted 0", "x" * 20, '"' * 20, b"x" * 20],
        {"s": {b"z" * 30, b"y" * 30}, "t": bytearray(b"z" * 30), "u": ["x" * 30 + "\\"]},
    ],
)
def test_the_order_of_items_is_that_of_the_whole_text(value: Any) -> None:
    text = codec.encode(value)
    assert codec.digest_text(text) == whole(text)
    if isinstance(value, dict):
        assert codec.digest_text(codec.encode(dict(reversed(value.items())))) == whole(text)
