from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import ormsgpack
import pytest
from story import STARTED, Story, op, story

from ramify.browse.tui.tabs import moment_lines
from ramify.browse.web.search import search
from ramify.browse.web.views import moment_view
from ramify.compiler.plan import OpKind
from ramify.inspect.history import End, History, read
from ramify.runtime.codec import codec
from ramify.runtime.records import ROOT, BranchPath, OpStatus
from ramify.runtime.store import RunStore

FORK, INNER = "root/fork.1.0", "root/fork.1.0.1/fork.2.0"


@pytest.fixture
def told() -> Story:
    return story()


@pytest.fixture
async def store(tmp_path: Path, told: Story) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", clock=lambda: STARTED + 30) as store:
        await store.create_run(told.run)
        yield store


def of(told: Story) -> History:
    return History(told.run, tuple(told.ops), tuple(told.llm), tuple(told.checkpoints), ())


def test_branches_know_their_fork_and_their_end(told: Story) -> None:
    lines = of(told).branches
    assert [*lines] == [ROOT, f"{FORK}.0", f"{FORK}.1", f"{FORK}.2", f"{INNER}.0"]
    seen = {path: (line.parent, line.forked_at, line.end, line.ended_at_seq) for path, line in lines.items()}
    assert seen == {
        ROOT: (None, 0, End.OPEN, None),
        f"{FORK}.0": (ROOT, 4, End.RELEASED, 15),
        f"{FORK}.1": (ROOT, 4, End.MERGED, 14),
        f"{FORK}.2": (ROOT, 4, End.RELEASED, 15),
        f"{INNER}.0": (f"{FORK}.1", 9, End.MERGED, 12),
    }
    assert [moment.seq for moment in lines[ROOT].moments] == [1, 2, 3, 4, 14, 15, 16, 17]
    assert [one.label for one in lines[BranchPath(f"{FORK}.1")].checkpoints] == ["try_edit", "merge"]


def test_moments_are_in_the_order_of_their_commits(told: Story) -> None:
    moments = of(told).moments
    assert [one.seq for one in moments] == list(range(1, 18))
    assert [one.seq for one in moments if one.times is not None] == [2, 3, 17]
    failed = moments[9]
    assert (failed.status, failed.name, failed.summary) == (OpStatus.FAILED, "try_edit", "ValueError: no")
    assert moments[5].reused_from == "5eed00000001#5"


def test_checkpoint_has_its_moment(told: Story) -> None:
    history = of(told)
    made = history.made_by(told.checkpoints[3])
    assert made is not None
    assert made.kind is OpKind.MERGE
    assert history.made_by(told.checkpoints[0]) is None


def test_branch_without_rows_is_between_its_child_and_the_root(told: Story) -> None:
    lines = replace(of(told), ops=(op(1, OpKind.RUN, f"{INNER}.0"),), llm=(), checkpoints=()).branches
    assert [*lines] == [ROOT, f"{FORK}.1", f"{INNER}.0"]


async def test_incremental_reading_equals_a_full_read(store: RunStore, told: Story) -> None:
    run = told.run.id
    history = await read(store, run)
    assert history.moments == ()
    rows = sorted([*told.ops, *told.llm], key=lambda row: row.seq)
    for row in rows:
        mine = [one for one in told.checkpoints if one.seq == row.seq or (row.seq == 1 and one.seq == 0)]
        if row in told.ops:
            await store.commit(run, ops=[row], checkpoints=mine)  # type: ignore[list-item]
        else:
            await store.commit(run, llm=[row], checkpoints=mine)  # type: ignore[list-item]
        history = await read(store, run, since=history)
        assert history.last_seq == row.seq
    assert history == await read(store, run)
    assert history.branches == of(told).branches


async def test_run_that_went_back_is_read_again(store: RunStore, told: Story) -> None:
    run = told.run.id
    await store.commit(run, ops=told.ops[:3])
    before = await read(store, run)
    await store.commit(run, ops=[op(20, OpKind.RESTORE)], undone_after=4)
    after = await read(store, run, since=before)
    assert [(one.seq, one.status) for one in after.ops][2:] == [(5, OpStatus.UNDONE), (20, OpStatus.DONE)]


PACKED = codec.encode(("msgpack", ormsgpack.packb({"next": "ümlaut " * 60, "raw": b"\xff"})))
DAMAGED = codec.encode(("msgpack", b"\x82\xa1x"))


def test_langgraph_result_is_shown_whole_everywhere_and_searchable(told: Story) -> None:
    node = op(17, OpKind.RUN, step="plan", result_json=PACKED, summary="{'next': 'ümlaut…")
    thread = replace(of(told), run=replace(told.run, thread_id="t"), ops=(node,), llm=())
    (moment,) = thread.moments
    assert json.loads(moment_view(moment, thread).result or "") == {"next": "ümlaut " * 60, "raw": "\ufffd"}
    assert sum(line.text.count("ümlaut") for line in moment_lines(moment, thread, 80)) == 60
    assert [hit.where for hit in search(thread, "Ümlaut ümlaut")] == ["result"]


def test_damaged_langgraph_result_shows_its_summary(told: Story) -> None:
    node = op(17, OpKind.RUN, step="plan", result_json=DAMAGED, summary="{'next': 'ümlaut'}")
    own = replace(node, seq=18, result_json='{"kept": 1}')
    thread = replace(of(told), run=replace(told.run, thread_id="t"), ops=(node, own))
    views = [moment_view(one, thread) for one in thread.moments if one.op is not None]
    assert [one.result for one in views] == ["\"{'next': 'ümlaut'}\"", '{"kept": 1}']
    seen = [line.text for one in thread.moments if one.op is not None for line in moment_lines(one, thread, 80)]
    assert any("{'next': 'ümlaut'}" in line for line in seen)
    assert not any("msgpack" in line for line in seen)
    assert replace(thread, run=told.run).result_of(node) == DAMAGED  # of a workflow: such a pair is its own
