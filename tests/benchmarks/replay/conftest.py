"""A base job with a small trace for tests of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay.jobs import Job


@pytest.fixture(scope="session")
def three_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace. One for all tests: the bounds of equal jobs are solved once."""
    trace = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 90, "output_length": 20}\n' * 3)
    return trace


@pytest.fixture
def base(three_calls: Path) -> Job:
    return Job("concord", str(three_calls), seconds=20.0)
