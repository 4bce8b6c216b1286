"""The contenders and what each is told: an oracle differs from its form only by what it knows."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.replay.baselines import BASELINES, PUBLISHED
from benchmarks.replay.baselines.contenders import OURS, contender
from benchmarks.replay.baselines.ordered import Ordered
from benchmarks.replay.baselines.plas import Plas, RefusingPlas
from benchmarks.replay.baselines.program_srpt import PacedProgramSrpt, ProgramSrpt
from benchmarks.replay.baselines.single_key import LearningToRank
from benchmarks.replay.types import Knowledge, Lengths, Stock, Structure
from ramify.serving.policy.calm import Calm
from ramify.serving.policy.stream_lending import StreamLending
from ramify.serving.policy.types import Capacity, Policy, View
from tests.serving.policy.views import NOW, running, view


def policy(name: str) -> Policy:
    engine = contender(name).engine
    assert not isinstance(engine, Stock)
    return engine()


@pytest.mark.parametrize(
    ("name", "kind", "lengths", "structure"),
    [
        ("fcfs-drop", Ordered, Lengths.NONE, Structure.HIDDEN),
        ("classes", Ordered, Lengths.PREDICTED, Structure.HIDDEN),
        ("edf", Ordered, Lengths.NONE, Structure.HIDDEN),
        ("edf-feasible", Ordered, Lengths.PREDICTED, Structure.HIDDEN),
        ("edf-plan", Ordered, Lengths.PREDICTED, Structure.PLAN),
        ("least-laxity", Ordered, Lengths.PREDICTED, Structure.PLAN),
        ("ltr", LearningToRank, Lengths.PREDICTED, Structure.HIDDEN),
        ("ltr-preempting", LearningToRank, Lengths.PREDICTED, Structure.HIDDEN),
        ("plas", Plas, Lengths.NONE, Structure.HIDDEN),
        ("atlas", Plas, Lengths.NONE, Structure.HIDDEN),
        ("srpt-oracle", Ordered, Lengths.ORACLE, Structure.HIDDEN),
        ("srpt-oracle-gpu", Ordered, Lengths.ORACLE, Structure.HIDDEN),
        ("program-srpt", ProgramSrpt, Lengths.PREDICTED, Structure.PLAN),
        ("program-srpt-paced", PacedProgramSrpt, Lengths.PREDICTED, Structure.PLAN),
        ("program-srpt-oracle", ProgramSrpt, Lengths.ORACLE, Structure.ORACLE),
        ("ltr, refusing", LearningToRank, Lengths.PREDICTED, Structure.HIDDEN),
        ("ltr-preempting, refusing", Ordered, Lengths.PREDICTED, Structure.HIDDEN),
        ("ltr-plan, refusing", Ordered, Lengths.PREDICTED, Structure.PLAN),
        ("ltr-plan-preempting, refusing", Ordered, Lengths.PREDICTED, Structure.PLAN),
        ("plas, refusing", RefusingPlas, Lengths.PREDICTED, Structure.HIDDEN),
        ("plas-plan, refusing", RefusingPlas, Lengths.PREDICTED, Structure.PLAN),
        ("least-laxity, by medians", Ordered, Lengths.PREDICTED, Structure.PLAN),
        ("fcfs-drop, 1 s", Ordered, Lengths.NONE, Structure.HIDDEN),
        ("fcfs-drop, 0.5 s", Ordered, Lengths.NONE, Structure.HIDDEN),
        ("fcfs-drop, 0.25 s", Ordered, Lengths.NONE, Structure.HIDDEN),
        ("concord", StreamLending, Lengths.PREDICTED, Structure.PLAN),
        ("concord-oracle", StreamLending, Lengths.ORACLE, Structure.ORACLE),
        ("calm-thesis", Calm, Lengths.PREDICTED, Structure.PLAN),
        ("calm-thesis-oracle", Calm, Lengths.ORACLE, Structure.ORACLE),
    ],
)
def test_each_is_told_what_its_paper_assumes(name: str, kind: type, lengths: Lengths, structure: Structure) -> None:
    assert type(policy(name)) is kind
    assert contender(name).knows == Knowledge(lengths, structure)


def test_the_list_is_whole_and_fcfs_is_vllms_own() -> None:
    names = {one.name for one in (*BASELINES, *OURS)}
    assert names == {
        *(
            "fcfs",
            "fcfs-whole",
            "fcfs-drop",
            "classes",
            "edf",
            "edf-feasible",
            "least-laxity",
            "ltr",
            "ltr-preempting",
            "edf-feasible-preempting",
            "edf-plan",
            "edf-plan-preempting",
            "plas-preempting",
            "program-srpt-preempting",
            "program-srpt-paced",
            "plas",
            "atlas",
        ),
        *("srpt-oracle", "srpt-oracle-gpu", "program-srpt", "program-srpt-oracle"),
        *("concord", "concord-oracle", "concord-tokens", "concord-tokens-oracle", "concord, nothing refused"),
        *("calm-thesis", "calm-thesis-oracle"),
    }
    assert contender("fcfs").engine == Stock(chunked_prefill=True)
    assert contender("fcfs-whole").engine == Stock(chunked_prefill=False)
    assert {one.name for one in BASELINES} - {one.name for one in PUBLISHED} == {
        "program-srpt",
        "program-srpt-preempting",
        "program-srpt-paced",
        "program-srpt-oracle",
    }


@pytest.mark.parametrize("form", ["concord", "concord-tokens", "calm-thesis", "program-srpt"])
def test_an_oracle_is_the_same_policy_that_knows_more(form: str) -> None:
    known, oracle = contender(form), contender(f"{form}-oracle")
    assert oracle.engine is known.engine
    assert oracle.knows == known.knows.as_oracle() != known.knows


FORMS = [(name, f"{name}-preempting") for name in ("edf-feasible", "ltr", "plas", "program-srpt")]
FORMS += [(f"{name}, refusing", f"{name}-preempting, refusing") for name in ("ltr", "ltr-plan")]


@pytest.mark.parametrize(("name", "preempting"), FORMS)
def test_whoever_preempts_in_a_paper_runs_both_ways(name: str, preempting: str) -> None:
    """Only the second of the two takes a slot from a running call."""
    busy = [running(i, length=900.0, generated=600, computed=700, deadline=NOW + 90.0) for i in range(4)]
    short = view(9, length=20, deadline=NOW + 60.0)
    tight = Capacity(slots=4, running=4, kv_free=100_000, can_preempt=True, can_pause=True)
    verdicts = [policy(form).decide(View(tight, [short], busy), NOW) for form in (name, preempting)]
    assert [len(verdict.pause) for verdict in verdicts] == [0, 1]
    assert contender(name).knows == contender(preempting).knows


def test_what_was_measured_of_held_out_prompts_is_less_than_what_contenders_are_told() -> None:
    told = Knowledge().correlation
    assert contender("concord, lengths as measured").knows.correlation < told
    assert contender("ltr, lengths as measured").knows.correlation < told


def test_calm_runs_as_written_and_what_was_tuned_in_simulation_is_an_ablation() -> None:
    written, tuned = contender("calm-thesis"), contender("calm-thesis, tuned")
    assert isinstance(written.engine, partial) and isinstance(tuned.engine, partial)
    assert written.engine.keywords == {"goodput": "request", "appendix": False} and written in OURS
    assert tuned.engine.keywords["waiting_s"] is None and tuned not in OURS
    assert tuned.engine.keywords["preempt_margin"] == float("inf")
