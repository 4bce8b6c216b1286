"""What an engine's end says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.serving.engine.contract import ended_early


@pytest.mark.parametrize(
    ("status", "said"), [(-9, "status -9 (SIGKILL: the kernel does so if memory"), (3, "status 3 be")]
)
def test_an_engine_that_was_killed_may_have_had_too_little_memory(tmp_path: Path, status: int, said: str) -> None:
    log = tmp_path / "log"
    log.write_text("loading\n")
    told = ended_early("vLLM", status, log)
    assert told.startswith(f"vLLM ended with {said}")
    assert told.endswith("it said last:\nloading")
