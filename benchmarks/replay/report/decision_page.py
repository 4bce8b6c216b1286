"""`page`: the page by which a user picks a policy (docs/evaluation.md), with the figures of the stored replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.replay.evaluation import ResultTable
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.report.comparisons import FIGURES
from benchmarks.replay.report.tables import Lines

TEMPLATE = Path(__file__).with_name("evaluation_page.md")
_CELLS = (("loose", 1.1), ("loose", 1.3), ("tight", 1.1), ("tight", 1.3))
_DROPPING = ("fcfs-drop", "fcfs-drop, 1 s", "fcfs-drop, 0.5 s", "fcfs-drop, 0.25 s")
# A scheduler with several forms is shown at its best in each column.
_SHOWN = (
    (("concord",), "**`concord`**"),
    (("program-srpt-paced",), "shortest remaining program first, with Concord's price and pace"),
    (("edf-plan", "edf-plan-preempting"), "earliest deadline first, told the plan, refuses by medians"),
    (_DROPPING, "FCFS that drops what waited (best of four limits)"),
    (("plas, refusing", "plas-plan, refusing"), "PLAS (Autellix) that refuses what is late"),
    (("ltr, refusing", "ltr-preempting, refusing"), "learning to rank that refuses what is late"),
    (("calm-thesis",), "`calm-thesis`"),
    (("ltr", "ltr-preempting"), "learning to rank, as published"),
    (("plas", "plas-preempting"), "PLAS (Autellix), as published"),
    (("fcfs",), "FCFS: vLLM's own scheduler"),
    (("clairvoyant",), "*a clairvoyant on the same engine*"),
)


def page(results: Sequence[Result]) -> str:
    """Return the page. Raises LookupError if a result that it names is missing."""
    table = ResultTable([_without_place(one) for one in results])
    base = next(job for job in table.jobs() if _usual(job))

    def met(contender: str, slo: str = "loose", load: float = 1.1) -> float:
        job = base.but(contender=contender, slo=slo, load=load)
        if not table.has(job):
            raise LookupError(f"no stored replay of {contender} with {slo} limits at load {load:g}")
        return table.estimate(job, FIGURES["request"]).mean

    def speed(contender: str, load: float = 1.1) -> float:
        mine = table.estimate(base.but(contender=contender, load=load), FIGURES["throughput"]).mean
        return mine / table.estimate(base.but(contender="fcfs", load=load), FIGURES["throughput"]).mean

    hidden = [met("concord", *cell) - met("concord, stages hidden", *cell) for cell in _CELLS]
    rival = [met("concord", *cell) - met("program-srpt-paced", *cell) for cell in _CELLS]
    mean = [abs(met("concord", *cell) - met("concord, mean lengths", *cell)) for cell in _CELLS[:3]]
    head = ("scheduler", *(f"{slo}, {load:g}" for slo, load in _CELLS))
    shown = tuple(
        (name, *(f"{max(met(one, *cell) for one in forms):.3f}" for cell in _CELLS)) for forms, name in _SHOWN
    )
    return TEMPLATE.read_text(encoding="utf-8").format(
        table="\n".join(Lines(head, shown).markdown()),
        fcfs=met("fcfs"),
        drop=met("fcfs-drop, 1 s"),
        idle=met("concord", load=0.7),
        fcfs_idle=met("fcfs", load=0.7),
        hidden=met("concord, stages hidden"),
        least=100 * min(hidden),
        most=100 * max(hidden),
        rival_least=100 * min(rival),
        rival_most=100 * max(rival),
        lengths=100 * max(mean),
        patient=met("concord, nothing refused"),
        patient_tight=100 * (met("concord", "tight") - met("concord, nothing refused", "tight")),
        speed=speed("concord"),
        patient_speed=speed("concord, nothing refused"),
        thesis=met("calm-thesis"),
        concord=met("concord"),
        clairvoyant=met("clairvoyant"),
        replays=len(results),
        hours=sum(one.score.simulated_s for one in results) / 3600,
        seeds=len(table.seeds(base)),
    )


def _usual(job: Job) -> bool:
    return job == Job("concord", job.trace, load=1.1, seed=0, seconds=job.seconds, steps=job.steps)


def _without_place(one: Result) -> Result:
    return replace(one, job=one.job.but(trace=one.job.trace.rpartition("/")[2]))
