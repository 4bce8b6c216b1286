from __future__ import annotations

import pytest

from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import AmbiguousRef, RunNotFound
from ramify.runtime.journal.refs import Ref, find_run, parse, resolve
from ramify.runtime.records import (
    ROOT,
    BranchPath,
    CheckpointId,
    CheckpointRecord,
    RunId,
    RunRecord,
    RunStatus,
    Settings,
)


def run(name: str) -> RunRecord:
    return RunRecord(
        RunId(name),
        "w",
        "w.py:w",
        "decorators",
        "/w",
        SnapshotId("b"),
        "{}",
        "[]",
        Settings(),
        RunStatus.DONE,
        0.0,
        0.0,
    )


def seal(run_id: str, seq: int, branch: str = ROOT, parent: int | None = None) -> CheckpointRecord:
    parents = () if parent is None else (CheckpointId(f"cp-{run_id}-{parent}"),)
    snapshot = SnapshotId(f"sn-{run_id}-{seq}")
    name = CheckpointId(f"cp-{run_id}-{seq}")
    return CheckpointRecord(name, RunId(run_id), seq, BranchPath(branch), snapshot, "k", parents, 0.0)


RUNS = [run("beef2222"), run("abcd9999"), run("abcd1111")]  # newest first
LEFT, RIGHT, DEEP = "root/o7.0.0", "root/o7.0.1", "root/o7.0.1/o9.0.0"
CHECKPOINTS = [
    seal("beef2222", 0),
    seal("beef2222", 3, parent=0),
    seal("beef2222", 5, LEFT, parent=3),
    seal("beef2222", 6, RIGHT, parent=3),
    seal("beef2222", 8, LEFT, parent=5),
    seal("beef2222", 9, DEEP, parent=6),
    seal("beef2222", 12, parent=3),
    seal("abcd1111", 0),
    seal("abcd9999", 0),
]


@pytest.mark.parametrize(
    ("text", "seq"),
    [
        ("@", 12),
        ("beef2222", 12),
        ("beef", 12),
        ("beef~", 3),
        ("beef~1", 3),
        ("@~2", 0),
        ("beef:base", 0),
        ("beef:root", 12),
        ("beef:root~1", 3),
        (f"beef:{LEFT}", 8),
        ("beef:o7.0.0", 8),
        ("beef:o7.0.1", 6),
        ("beef:o9.0.0", 9),
        ("beef:o7.0.0~1", 5),
        ("beef:o7.0.0~2", 3),  # before the branch's beginning: its parent's checkpoints
        ("beef:o9.0.0~3", 0),
        ("cp-beef2222-5", 5),
        ("cp-beef2222-8~1", 5),
        ("cp-beef2222-12", 12),
    ],
)
def test_a_state_of_a_run(text: str, seq: int) -> None:
    place = resolve(text, RUNS, CHECKPOINTS)
    assert place.checkpoint is not None
    assert place.checkpoint.seq == seq
    assert place.snapshot == f"sn-beef2222-{seq}"
    assert place.run == RUNS[0]


def test_an_exact_name_wins_over_a_prefix() -> None:
    place = resolve("cp-beef2222-1", RUNS, [*CHECKPOINTS, seal("beef2222", 1, parent=0)])
    assert place.snapshot == "sn-beef2222-1"


def test_a_snapshot_by_its_prefix() -> None:
    place = resolve("sn-lo", RUNS, CHECKPOINTS, [SnapshotId("sn-lonely"), SnapshotId("sn-beef2222-5")])
    assert (place.snapshot, place.checkpoint, place.run) == ("sn-lonely", None, None)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("nothing", "ramify ls"),
        ("bee", "at least 4 characters"),
        ("", "does not name a run"),
        ("a:b:c", "does not name a run"),
        ("beef~x", "does not name a run"),
        ("beef:nowhere", "there is root, root/o7.0.0"),
        ("beef~9", "only 2 checkpoints before it"),
        (f"beef~{'9' * 5000}", "only 2 checkpoints before it"),  # more digits than Python reads
        ("sn-lonely~1", "ramify ls"),
    ],
)
def test_an_unknown_name_says_what_to_try(text: str, advice: str) -> None:
    with pytest.raises(RunNotFound, match=advice):
        resolve(text, RUNS, CHECKPOINTS, [SnapshotId("sn-lonely")])


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("abcd", ("abcd9999", "abcd1111")),
        ("cp-beef", ("cp-beef2222-0", "cp-beef2222-3")),
        ("sn-lo", ("sn-lonely", "sn-long")),
    ],
)
def test_an_ambiguous_name_lists_its_candidates(text: str, candidates: tuple[str, ...]) -> None:
    with pytest.raises(AmbiguousRef) as raised:
        resolve(text, RUNS, CHECKPOINTS, [SnapshotId("sn-lonely"), SnapshotId("sn-long")])
    assert all(name in str(raised.value) for name in candidates)


def test_a_suffix_of_two_branches_is_ambiguous() -> None:
    twice = [*CHECKPOINTS, seal("beef2222", 20, "root/o7.0.0/o9.0.0", parent=8)]
    with pytest.raises(AmbiguousRef, match=r"root/o7\.0\.1/o9\.0\.0"):
        resolve("beef:o9.0.0", RUNS, twice)


def test_there_are_no_runs_yet() -> None:
    with pytest.raises(RunNotFound, match="ramify run"):
        find_run(parse("@"), [])
    assert find_run(parse("cafe"), []) is None


def test_parsing_of_references() -> None:
    assert parse("@:o1.0.2~3") == Ref("@:o1.0.2~3", "@", "o1.0.2", 3)
    assert parse("@").is_whole_run
    assert not parse("@~1").is_whole_run
    assert not parse("@:base").is_whole_run
