"""Growing texts are stored as differences, and read as they were written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.runtime.records import RunId
from ramify.runtime.store import RunStore, blobs, rows, stored_texts
from ramify.runtime.store.engines import writer
from ramify.runtime.store.stored_texts import (
    Packed,
    common,
    compress,
    expand,
    named,
    pack,
    packed_in_pieces,
    to_bytes,
    unpack,
)

Make = Callable[..., Any]
TEXTS = st.lists(st.text(st.one_of(st.characters(), st.just("\udc80")), max_size=400), max_size=6)


@given(TEXTS, st.lists(st.integers(0, 5), max_size=12))
def test_any_chain_of_texts_is_read_as_written(pieces: list[str], order: list[int]) -> None:
    texts = {f"{at}": "".join(pieces[: n + 1]) + "]" for at, n in enumerate(order)}
    packed: dict[str, Packed] = {}
    for name, text in texts.items():
        bases = [(other, to_bytes(texts[other])) for other in packed]
        packed[name] = pack(text, to_bytes(text), bases)
    assert unpack(texts, packed) == texts


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_the_common_beginning_is_found(start: bytes, one: bytes, other: bytes) -> None:
    length = common(start + one, start + other)
    assert (start + one)[:length] == (start + other)[:length]
    assert length >= len(start)
    assert (start + one)[length : length + 1] != (start + other)[length : length + 1] or length == min(
        len(start + one), len(start + other)
    )


@given(st.binary(max_size=500), st.binary(max_size=500))
def test_compressed_data_is_expanded(data: bytes, dictionary: bytes) -> None:
    squeezed = compress(data, dictionary)
    assert squeezed is None or expand(squeezed, dictionary) == data


def test_a_base_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError):
        unpack(["a"], {"a": Packed("", "gone", 3, b"\0x")})


def grown(count: int) -> list[str]:
    messages = [os.urandom(500).hex() for _ in range(count)]
    return [json.dumps(messages[: n + 1]) for n in range(count)]


def stored(store: RunStore) -> int:
    engine = writer(store.address)
    with engine.begin() as connection:
        size = "SELECT coalesce(sum(length(text) + coalesce(length(tail), 0)), 0) FROM blobs"
        found: int = connection.exec_driver_sql(size).scalar_one()
    engine.dispose()
    return found


async def test_growing_results_are_stored_as_differences(store: RunStore, a_run: Make, an_op: Make) -> None:
    await store.create_run(a_run())
    texts = grown(50)
    for seq, text in enumerate(texts, 1):  # as turns of a conversation, each of which takes the lease
        async with store.held(RunId("run-1")):
            await store.commit("run-1", ops=[an_op(seq=seq, result_json=text)])
    assert [op.result_json for op in await store.ops("run-1")] == texts
    assert stored(store) < 1.1 * len(texts[-1])


async def test_deleting_a_run_keeps_texts_that_others_need(store: RunStore, a_run: Make, an_op: Make) -> None:
    texts = grown(6)
    for run, some in (("run-1", texts), ("run-2", [*texts[:3], texts[5]])):
        await store.create_run(a_run(id=run))
        async with store.held(RunId(run)):
            for seq, text in enumerate(some, 1):
                await store.commit(run, ops=[an_op(run_id=run, seq=seq, result_json=text)])
    await store.delete_run(RunId("run-1"))
    assert [op.result_json for op in await store.ops("run-2")] == [*texts[:3], texts[5]]
    await store.delete_run(RunId("run-2"))
    assert stored(store) == 0


async def test_a_run_with_the_id_of_a_deleted_one_uses_none_of_its_texts(
    store: RunStore, a_run: Make, an_op: Make
) -> None:
    """Another process deleted it; this one still has its texts cached."""
    first, second = grown(2)
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op(result_json=first)])
    async with RunStore(
        store.address.file or store.address.url.render_as_string(hide_password=False), clock=lambda: 0.0
    ) as other:
        await other.delete_run(RunId("run-1"))
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op(result_json=second)])
    assert [op.result_json for op in await store.ops("run-1")] == [second]


@given(st.text(st.one_of(st.characters(), st.just("\udc80")), min_size=5, max_size=60))
def test_a_text_in_pieces_is_read_as_written(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_texts, "PIECE", 4)
        found = named(text)
        pieces = dict(packed_in_pieces(*found[::2]))
        assert next(iter(pieces)) == found.name == rows.digest(text)
        prefixes = {rows.digest(text[:end]): text[:end] for end in {*range(4, len(text), 4), len(text)}}
        assert unpack([rows.digest(text)], pieces) == {rows.digest(text): text}
        assert unpack(pieces, pieces) == prefixes


async def test_a_long_text_is_stored_in_pieces_and_deleted_whole(
    store: RunStore, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs with the same beginning share its pieces."""
    monkeypatch.setattr(stored_texts, "PIECE", 1000)
    start = json.dumps("é\0x" * 500 + "€" * 999, ensure_ascii=False)
    texts = {"run-1": start + "a" * 900, "run-2": start + "b" * 900}
    for run, text in texts.items():
        await store.create_run(a_run(id=run, args_json=text + "+"))
        await store.commit(run, ops=[an_op(run_id=run, result_json=text)])
    for run, text in texts.items():
        assert [op.result_json for op in await store.ops(RunId(run))] == [text]
        assert (await store.run(RunId(run))).args_json == text + "+"
    await store.delete_run(RunId("run-1"))
    assert [op.result_json for op in await store.ops(RunId("run-2"))] == [texts["run-2"]]
    await store.delete_run(RunId("run-2"))
    assert stored(store) == 0


async def test_a_long_text_that_is_there_in_another_form_gets_no_pieces(
    store: RunStore, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote it as one text. Nothing referred to the new pieces, so no deletion removed them."""
    whole = "é" * 5000
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op(result_json=whole)])
    monkeypatch.setattr(stored_texts, "PIECE", 1000)
    monkeypatch.setattr(blobs, "_LONGEST", 0)
    for run, text in (("run-2", whole), ("run-3", whole + "a" * 900)):
        await store.create_run(a_run(id=run, args_json=whole))
        await store.commit(run, ops=[an_op(run_id=run, result_json=text)])
        assert [op.result_json for op in await store.ops(RunId(run))] == [text]
    for run in ("run-1", "run-2", "run-3"):
        await store.delete_run(RunId(run))
    assert stored(store) == 0


@pytest.mark.parametrize("sizes", [(1000, 250), (250, 1000), (1000, 300)])
async def test_versions_that_cut_texts_elsewhere_share_pieces(
    sizes: tuple[int, int], store: RunStore, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_LONGEST", 0)
    start = "é\\x" * 1000
    texts = {"run-1": start, "run-2": start + "b" * 700, "run-3": start[:2000]}
    for run, size in zip(texts, (*sizes, sizes[0]), strict=True):
        monkeypatch.setattr(stored_texts, "PIECE", size)
        await store.create_run(a_run(id=run))
        await store.commit(run, ops=[an_op(run_id=run, result_json=texts[run])])
    for gone in ("run-1", "run-3", "run-2"):
        for run, text in texts.items():
            assert [op.result_json for op in await store.ops(RunId(run))] == [text]
        await store.delete_run(RunId(gone))
        del texts[gone]
    assert stored(store) == 0
