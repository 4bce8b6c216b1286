"""Packed results may come from elsewhere: only valid keys are used as file names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.replay.errors import ReplayError
from benchmarks.replay.jobs import Job
from benchmarks.replay.results import pack, unpack
from tests.benchmarks.replay.sample_results import result

KEY = "0123456789abcdef01234567"
BAD = ("../../x", "/tmp/x", "..", "", "a" * 300, "x\u0660", KEY[:-1] + "/", KEY + "\n", KEY.upper(), 5, None, ["a"])


def line(key: object) -> str:
    kept = json.loads(result(Job("fcfs", "trace.csv"), 0.5).to_json())
    return json.dumps({"key": key, "result": kept})


@pytest.mark.parametrize("key", BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_an_invalid_key_never_names_a_file(key: object, packed: bool, tmp_path: Path) -> None:
    """And nothing of the file is stored."""
    text = f"{line(KEY)}\n{line(key)}\n".encode()
    (sent := tmp_path / "sent").write_bytes(gzip.compress(text) if packed else text)
    kept = tmp_path / "out" / "results"
    with pytest.raises(ReplayError, match="line 2 is no replay's result"):
        unpack(sent, kept)
    assert [path.name for path in tmp_path.rglob("*")] == ["sent"]


def test_packed_results_are_stored_once_by_key(tmp_path: Path) -> None:
    (trace := tmp_path / "trace.csv").write_text("arrivals")
    jobs = [Job("fcfs", str(trace), seed=seed) for seed in range(3)]
    pack(tmp_path / "packed", [result(job, 0.5) for job in jobs])
    assert [unpack(tmp_path / "packed", tmp_path / "out") for _ in range(2)] == [3, 0]
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == sorted(job.key for job in jobs)
