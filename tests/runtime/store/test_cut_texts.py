"""Of long texts, a reader that cuts reads the beginning and the size; on both databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ramify.runtime.records import EffectRecord, EffectStatus
from ramify.runtime.store import RunStore, rows, stored_texts
from ramify.runtime.store.cut_texts import LONGER, cut_texts
from ramify.runtime.store.reader import Reader, at_once, reading

Make = Callable[..., Any]

LONG = {
    "one row": json.dumps("x" * LONGER),
    "pieces": json.dumps("y" * 5 * LONGER),
    "beyond ASCII": json.dumps("€é" * 3 * LONGER, ensure_ascii=False),
}


@pytest.mark.parametrize("which", LONG)
async def test_long_values_are_cut(
    which: str, address: str, store: RunStore, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_texts, "PIECE", 2 * LONGER)
    text, short = LONG[which], json.dumps("z" * (LONGER - 2))
    run = a_run(args_json=text)
    await store.create_run(run)
    await store.commit(run.id, ops=[an_op(seq=1, result_json=text), an_op(seq=2, key="o2", result_json=short)])
    effect = EffectRecord(run.id, "k", "send", an_op().branch, EffectStatus.DONE, "idem", text, result_json=text)
    await store.commit(run.id, effects=[effect])

    with reading(address, cuts=True) as reader:
        first, second = at_once(reader.ops(run.id))
        found = json.loads(first.result_json or "")
        assert second.result_json == short
        assert [one.args_json for one in at_once(reader.runs())] == [first.result_json]
        assert at_once(reader.effects(run.id)) == [
            replace(effect, args_json=first.result_json or "", result_json=first.result_json)
        ]
        journal = await store.journal(run.id, cuts=True)
        assert journal == at_once(reader.journal(run.id)) == ([first, second], [])
        (latest,) = await store.latest_runs(run.workflow, among=9, most=9)
        assert [latest] == at_once(reader.latest_runs(run.workflow, among=9, most=9))
        assert latest.args_json == first.result_json
    begins = found.pop("begins")
    assert text.startswith(begins) and 1000 < len(begins) <= 4096
    assert found == {"$": "cut", "digest": rows.digest(text), "bytes": len(text.encode()), "exact": True}
    with reading(address) as whole:
        assert at_once(whole.ops(run.id))[0].result_json == text


async def test_of_a_long_text_that_grew_only_what_it_shares_is_shown(
    address: str, store: RunStore, a_run: Make, an_op: Make
) -> None:
    await store.create_run(a_run())
    texts = [json.dumps(["a" * LONGER, end * 500]) for end in "bc"]
    async with store.held(a_run().id):
        for seq, text in enumerate(texts, 1):
            await store.commit(a_run().id, ops=[an_op(seq=seq, key=f"o{seq}", result_json=text)])
    with reading(address, cuts=True) as reader:
        first, second = (json.loads(one.result_json or "") for one in at_once(reader.ops(a_run().id)))
    assert first["begins"] == second["begins"] == texts[0][: len(first["begins"])]
    assert first["digest"] != second["digest"]
    assert (first["exact"], second["exact"]) == (True, False)  # the end of the second is compressed
    assert LONGER < second["bytes"] < len(texts[1])


async def test_a_text_is_cut_whose_bases_no_row_of_its_table_names(
    address: str, store: RunStore, a_run: Make, an_op: Make
) -> None:
    """Each text of the run continues the one before, and only the last one is read."""
    await store.create_run(a_run())
    texts = [json.dumps(["a" * LONGER, *map(str, range(1000, 1000 + 200 * grown))]) for grown in range(1, 5)]
    async with store.held(a_run().id):
        for seq, text in enumerate(texts, 1):
            await store.commit(a_run().id, ops=[an_op(seq=seq, key=f"o{seq}", result_json=text)])
    with reading(address, cuts=True) as reader:
        every = at_once(reader.ops(a_run().id))
        (last,) = at_once(reader.ops(a_run().id, after=len(texts) - 1))
    assert last == every[-1]
    assert len({one.result_json for one in every}) == len(texts)
    for one in every:
        assert texts[0].startswith(json.loads(one.result_json or "")["begins"])


def test_a_damaged_chain_is_refused() -> None:
    def ask(query: str, names: Any) -> list[dict[str, Any]]:
        base = {"a": "b", "b": "a"}
        row = {"keep": 2 * LONGER, "more": 1, "first": b"\0", "size": 0}
        return [{"digest": name, "base": base[name], **row} for name in names]

    with pytest.raises(ValueError, match="base of itself"):
        cut_texts(["a"], ask, on_server=False)


async def test_the_results_of_model_calls_stay_whole(
    address: str, store: RunStore, a_run: Make, an_llm_call: Make
) -> None:
    await store.create_run(a_run())
    call = an_llm_call(request_json=LONG["pieces"], result_json=LONG["pieces"])
    await store.commit(a_run().id, llm=[call])
    with reading(address, cuts=True) as reader:
        assert at_once(reader.llm(a_run().id)) == [call]


async def test_no_piece_but_the_first_is_read(
    address: str, store: RunStore, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_texts, "PIECE", LONGER)
    await store.create_run(a_run())
    await store.commit(a_run().id, ops=[an_op(result_json=LONG["pieces"])])
    read = list[int]()
    rows_of = Reader._rows

    def counted(self: Reader, query: str, values: Any = ()) -> Any:
        found = rows_of(self, query, values)
        read.append(sum(len(value) for row in found for value in row.values() if isinstance(value, str | bytes)))
        return found

    monkeypatch.setattr(Reader, "_rows", counted)
    with reading(address, cuts=True) as reader:
        at_once(reader.ops(a_run().id))
    assert 4096 < sum(read) < 2 * 4096
