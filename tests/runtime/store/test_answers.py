"""Answers in the store, on both databases: the first answer counts, and rows of earlier versions are understood."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ramify.compiler.plan import OpKind
from ramify.runtime.records import (
    AnswerRecord,
    EffectRecord,
    EffectStatus,
    OpRecord,
    OpStatus,
    RunId,
    RunStatus,
    RunUpdate,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.reader import reading

RUN = RunId("run-1")


def answer(key: str, said: str, by: str = "somebody") -> AnswerRecord:
    return AnswerRecord(RUN, key, f'"{said}"', 1001.0, by)


async def test_the_first_answer_counts(store: RunStore, a_run: Any) -> None:
    await store.create_run(a_run())
    assert await store.put_answers(RUN, [answer("q1", "yes")]) is None
    before = await store.put_answers(RUN, [answer("q1", "no", "another")])
    assert before == answer("q1", "yes")
    assert await store.answers(RUN) == await store.answers() == [answer("q1", "yes")]


async def test_several_answers_are_stored_together_or_not_at_all(store: RunStore, a_run: Any) -> None:
    await store.create_run(a_run())
    await store.put_answers(RUN, [answer("q1", "yes")])
    assert await store.put_answers(RUN, [answer("q0", "a"), answer("q1", "b")]) == answer("q1", "yes")
    assert [one.key for one in await store.answers(RUN)] == ["q1"]


async def test_of_concurrent_answers_one_is_stored(address: str, store: RunStore, a_run: Any) -> None:
    await store.create_run(a_run())
    async with RunStore(address, clock=lambda: 0.0) as other:
        said = [answer("q", str(at)) for at in range(20)]
        taken = await asyncio.gather(*[(store, other)[at % 2].put_answers(RUN, [one]) for at, one in enumerate(said)])
    (first,) = await store.answers(RUN)
    assert [one for one in taken if one is not None] == [first] * 19
    assert [said[at] for at, before in enumerate(taken) if before is None] == [first]


async def test_the_reader_gives_the_same_answers(store: RunStore, address: str, a_run: Any, an_op: Any) -> None:
    asks = an_op(kind=OpKind.INTERRUPT, status=OpStatus.ASKED, key="q\ud800")
    doubt = EffectRecord(RUN, "e", "send", asks.branch, EffectStatus.IN_DOUBT, "key", "{}")
    await store.create_run(a_run())
    await store.create_run(a_run(id=RunId("done"), status=RunStatus.RUNNING))
    await store.commit(RUN, ops=[an_op(seq=7), asks], effects=[doubt])
    await store.commit(RunId("done"), ops=[an_op(run_id=RunId("done"), kind=OpKind.INTERRUPT)])
    await store.commit(RunId("done"), update=RunUpdate(status=RunStatus.DONE))
    await store.put_answers(RUN, [answer("q\ud800", "yes\ud800")])
    with reading(address) as reader:
        for of in (store, reader):
            assert await of.interrupts() == await of.interrupts(RUN) == [asks]
            assert [row.run_id for row in await of.interrupts(RunId("done"))] == ["done"]
            assert await of.answers() == await of.answers(RUN) == [answer("q\ud800", "yes\ud800")]
            assert await of.answers(RunId("done")) == []
            assert await of.doubts() == [doubt]


async def test_a_run_that_went_back_takes_new_answers(store: RunStore, a_run: Any, an_op: Any) -> None:
    asks = an_op(kind=OpKind.INTERRUPT, status=OpStatus.ASKED)
    rows = [
        numbered(asks, 2, "early"),
        numbered(asks, 5, "late"),
        numbered(an_op(kind=OpKind.INTERRUPT), 6, "early"),
    ]
    await store.create_run(a_run())
    await store.commit(RUN, ops=rows)
    await store.put_answers(RUN, [answer("early", "a"), answer("late", "b"), answer("other", "c")])
    await store.commit(RUN, undone_after=6)
    assert [one.key for one in await store.answers(RUN)] == ["early", "late", "other"]
    await store.commit(RUN, undone_after=3)
    voided = [one.key.partition("|void|")[0] for one in await store.answers(RUN) if "|void|" in one.key]
    assert voided == ["early", "late"]
    assert await store.put_answers(RUN, [answer("early", "d"), answer("late", "e")]) is None
    await store.void_answers(RUN, ["other"])
    assert await store.put_answers(RUN, [answer("other", "f")]) is None


async def test_a_question_that_was_not_asked_again_has_its_own_status(
    store: RunStore, a_run: Any, an_op: Any
) -> None:
    asks = an_op(kind=OpKind.INTERRUPT, status=OpStatus.ASKED)
    await store.create_run(a_run())
    await store.commit(RUN, ops=[numbered(asks, 1, "one"), numbered(asks, 2, "two"), an_op(seq=3, key="one")])
    await store.commit(RUN, unasked=["one"])
    assert [row.status for row in await store.ops(RUN)] == [OpStatus.UNASKED, OpStatus.ASKED, OpStatus.DONE]


async def test_answers_are_deleted_with_their_run(store: RunStore, a_run: Any) -> None:
    await store.create_run(a_run())
    await store.create_run(a_run(id=RunId("run-2")))
    shared = AnswerRecord(RunId("run-2"), "q", '"both"', 1.0)
    await store.put_answers(RUN, [answer("q", "both")])
    await store.put_answers(RunId("run-2"), [shared])
    await store.delete_run(RUN)
    assert await store.answers() == [shared]


def numbered(row: OpRecord, seq: int, key: str) -> OpRecord:
    return replace(row, seq=seq, key=key)
