"""benchmarks/streams.py: what it asks of vLLM's interpreter, and what it says without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import streams
from benchmarks.replay.inputs.stream_loads import HARD, SWEEPS, Load
from benchmarks.replay.report.stream_figures import StreamFigures
from benchmarks.replay.stream_runs import Measured
from benchmarks.replay.types import WatchedStep

ONE = Measured(0.9, 0.5, 1.0, 1.0, 2.0, 0.1, 3, 100.0, 0, 0, 10)


def test_the_interpreter_with_vllm_gets_all_that_is_asked_and_its_answer_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def replayed(
        name: str, load: Load, seconds: float, seed: int, trace: Path | None, watch: StreamFigures
    ) -> Measured:
        asked.append((name, load, seconds, seed, trace))
        watch.stepped(WatchedStep(1.0, 2, 300, 0.5, 0, 0))
        return ONE

    def run_here(command: list[str], **_: object) -> object:
        streams._child(command[-1])
        return type("Done", (), {"returncode": 0, "stdout": "a warning\n" + capsys.readouterr().out})

    monkeypatch.setattr(streams, "replayed", replayed)
    monkeypatch.setattr(streams, "vllm_python", lambda: sys.executable)
    monkeypatch.setattr(streams.subprocess, "run", run_here)
    loads = [Load(), SWEEPS["memory"][0]]
    found, seen = streams.in_vllm(["a", "b"], loads, 9.0, 2, Path("t"), watched=True)
    assert asked == [(name, load, 9.0, seed, Path("t")) for load in loads for name in "ab" for seed in (1, 2)]
    assert found == {(name, load): [ONE, ONE] for load in loads for name in "ab"}
    assert len(seen["a"].told()["steps"]) == 4


def test_without_vllm_the_only_row_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streams, "vllm_python", lambda: None)
    monkeypatch.setattr(sys, "argv", ["streams.py", "--json", "--quick"])
    streams.main()
    (row,) = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["rows"]
    assert row["met"] is False and "make vllm-cpu" in row["note"]


def test_a_load_that_two_sweeps_have_is_replayed_once() -> None:
    loads = streams._loads(["duration", "variants"], False, None)
    assert len(loads) == len(set(loads)) == len(SWEEPS["duration"])
    assert all(load.rate == HARD for load in loads)
