"""Any value stored as a difference to any other value is read back unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ramify.runtime.langgraph.checkpointer.values import (
    Packed,
    Serialised,
    compress,
    expand,
    pack,
    split,
    unpack,
)

serde = JsonPlusSerializer()
pieces = st.binary(min_size=0, max_size=200)


@given(st.lists(st.tuples(pieces, st.integers(0, 400), st.lists(st.integers(0, 5), max_size=3)), max_size=12))
def test_a_chain_of_values_comes_back(steps: list[tuple[bytes, int, list[int]]]) -> None:
    """Each value is a prefix of the one before and something new, with earlier plain values as its dictionary."""
    packed: dict[int, Packed] = {}
    values: dict[int, Serialised] = {}
    plain: list[int] = []
    for id, (new, keep, chosen) in enumerate(steps):
        before = values.get(id - 1, Serialised("msgpack", b""))
        value = Serialised("msgpack", before.data[:keep] + new)
        words = [(plain[c], values[plain[c]].data) for c in chosen if c < len(plain)]
        packed[id] = pack(value, (id - 1, before) if id else None, words)
        values[id] = value
        if packed[id].base is None and not packed[id].words:
            plain.append(id)
    for id, value in values.items():
        assert unpack(id, packed) == value


@given(st.lists(st.text(min_size=100, max_size=200), min_size=1, max_size=40))
def test_a_list_that_grows_costs_what_is_new(texts: list[str]) -> None:
    packed: dict[int, Packed] = {}
    last: tuple[int, Serialised] | None = None
    for at in range(len(texts)):
        value = Serialised(*serde.dumps_typed(texts[: at + 1]))
        packed[at] = pack(value, last)
        assert len(packed[at].tail) <= len(texts[at].encode()) + 5
        last = (at, value)
    assert serde.loads_typed(("msgpack", unpack(len(texts) - 1, packed).data)) == texts


def test_the_header_of_an_array_is_told_from_its_elements() -> None:
    for count in (0, 1, 15, 16, 65535, 65536):
        value = Serialised(*serde.dumps_typed(["x"] * count))
        head, rest = split(value)
        assert len(rest) == 2 * count
        assert head + rest == value.data
    assert split(Serialised("json", b"\x91x")) == (b"", b"\x91x")


@given(st.binary(max_size=500), st.binary(max_size=500))
def test_compression_comes_back(data: bytes, dictionary: bytes) -> None:
    squeezed = compress(data, dictionary)
    if squeezed is not None:
        assert len(squeezed) < len(data)
        assert expand(squeezed, dictionary) == data


def test_equal_bytes_of_different_kinds_are_different_values() -> None:
    assert Serialised("json", b"1").digest != Serialised("msgpack", b"1").digest
