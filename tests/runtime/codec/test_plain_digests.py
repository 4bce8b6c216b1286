"""Digests that are taken of the text itself are those of the parsed value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramify.runtime.codec import codec
from ramify.runtime.codec.plain_digests import digest_of_arguments, digest_of_text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from("{}$")
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3), max_leaves=5
)


@given(VALUES)
def test_of_any_value(value: object) -> None:
    text = codec.encode(value)
    assert digest_of_text(text) == codec.digest_text(text)


@given(st.dictionaries(st.text() | st.just("$") | st.integers(), VALUES, max_size=3))
def test_of_arguments(arguments: dict[str, object]) -> None:
    text = codec.encode(arguments)
    assert digest_of_arguments(arguments, text) == codec.digest_text(text)
