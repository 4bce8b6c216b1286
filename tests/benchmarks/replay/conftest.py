"""A base job with a small trace for tests of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay.jobs import Job


@pytest.fixture
def base(tmp_path: Path) -> Job:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 90, "output_length": 20}\n' * 3)
    return Job("concord", str(trace), seconds=20.0)
