from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from story import op, story

from ramify.compiler.plan import OpKind
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.inspect.facts import outside_lines
from ramify.inspect.history import History
from ramify.inspect.state import MISSING, StateDiff, Variable, changed_channels, state_at
from ramify.runtime.records import ROOT, EffectRecord, EffectStatus


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "store")


@pytest.fixture
def empty(snapshots: SnapshotStore, tmp_path: Path) -> Snapshot:
    (tmp_path / "empty").mkdir()
    return snapshots.import_tree(tmp_path / "empty").snapshot


def test_changed_environment_variables(snapshots: SnapshotStore, empty: Snapshot) -> None:
    before = replace(empty, env={"SAME": "1", "CHANGED": "1", "GONE": "1"}, env_unset=("LANG",), cwd="src")
    after = replace(empty, env={"SAME": "1", "CHANGED": "2", "NEW": "1"}, env_unset=("PATH",))
    between = StateDiff(snapshots, before, after)
    assert between.variables == (
        Variable("CHANGED", "1", "2"),
        Variable("GONE", "1", None),
        Variable("LANG", None, None),
        Variable("NEW", None, "1"),
        Variable("PATH", None, None),
    )
    assert between.moved
    assert StateDiff(snapshots, before, before).variables == ()


def test_changes_outside_the_workspace_are_named_and_bounded(
    snapshots: SnapshotStore, empty: Snapshot, tmp_path: Path
) -> None:
    upper, outside = tmp_path / "upper", tmp_path / "outside"
    upper.mkdir()
    for name in ("home/me/one", "home/me/two", "tmp/scratch", "home/me/.cache/pip"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text(name)
    after = snapshots.seal_upper(upper, empty, env={}, env_unset=(), cwd="", outside=outside, move=False)
    between = StateDiff(snapshots, empty, after)
    assert [(one.path, one.kind.value) for one in between.outside] == [
        ("/home/me/one", "added"),
        ("/home/me/two", "added"),
    ]
    assert (between.files, between.patches) == ((), ())
    assert outside_lines(between, 2) == ["outside: A /home/me/one", "outside: A /home/me/two"]
    first, more = outside_lines(between, 1)
    assert first == "outside: A /home/me/one" and "1 more path;" in more
    assert StateDiff(snapshots, after, after).outside == ()


def test_state_has_the_moments_since_the_previous_checkpoint(
    snapshots: SnapshotStore, empty: Snapshot, tmp_path: Path
) -> None:
    told = story()
    (tmp_path / "empty" / "new").write_text("new\n")
    other = snapshots.import_tree(tmp_path / "empty").snapshot
    base, *_, last = told.checkpoints
    ends = (replace(base, snapshot_id=empty.id), replace(last, snapshot_id=other.id))
    effects = tuple(
        EffectRecord(told.run.id, f"k{seq}", "send", ROOT, EffectStatus.DONE, f"key {seq}", "[]") for seq in (1, 16)
    )
    history = History(told.run, tuple(told.ops), tuple(told.llm), ends, effects)
    state = state_at(history, snapshots, ends[1])
    assert [moment.seq for moment in state.moments] == [1, 2, 3, 4, 14]
    assert [moment.seq for moment in state.calls] == [2, 3]
    assert state.made is not None
    assert (state.made.kind, state.since) == (OpKind.MERGE, ends[0])
    assert [one.idempotency_key for one in state.effects] == ["key 1"]
    assert state.change is not None
    assert [change.path for change in state.change.files] == ["new"]
    assert b"+new" in state.change.patches[0].text


def test_first_state_has_no_parent(snapshots: SnapshotStore, empty: Snapshot) -> None:
    told = story()
    base = replace(told.checkpoints[0], snapshot_id=empty.id)
    state = state_at(History(told.run, (op(1, OpKind.RUN),), (), (base,), ()), snapshots, base)
    assert (state.since, state.change, state.made, state.moments) == (None, None, None, ())


def test_step_that_returns_none_is_no_difference() -> None:
    before: dict[str, object] = {"was": 1, "same": 2}
    after: dict[str, object] = {"same": 2, "new": 0, "quiet": None, "was": None}
    assert changed_channels(before, after) == [("new", MISSING, 0), ("was", 1, None)]
