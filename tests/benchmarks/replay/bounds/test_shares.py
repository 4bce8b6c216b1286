"""Bounds are stored beside the results, and computed again if a stored one is damaged."""

from __future__ import annotations

from pathlib import Path

from benchmarks.replay.bounds.shares import Bounds
from benchmarks.replay.jobs import Job


def test_a_bound_is_stored_and_covers_the_whole_run_too(base: Job, tmp_path: Path) -> None:
    kept = Bounds(tmp_path).of(base, [0])
    (path,) = tmp_path.glob("bound-*.json")
    assert kept.request == kept.whole == 1.0
    path.write_text(path.read_text().replace('"whole": 1.0', '"whole": 0.5'))
    assert Bounds(tmp_path).of(base, [0]).whole == 0.5
    assert Bounds(tmp_path).of(base.but(contender="fcfs"), [0]).whole == 0.5, "the same for every contender"
    assert Bounds(tmp_path).of(base.but(seed=1), [0, 1]).whole == 0.75


def test_a_damaged_stored_bound_is_computed_again(base: Job, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    Bounds(kept).of(base, [0])
    (path,) = kept.iterdir()
    whole = path.read_text()
    for spoilt in ("", "{", "[]", '{"request": 1}'):
        path.write_text(spoilt)
        assert Bounds(kept).of(base, [0]).whole == 1.0
        assert path.read_text() == whole and [*kept.iterdir()] == [path]
