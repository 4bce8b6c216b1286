"""The schedulers that Concord is compared with. `BASELINES` is what `benchmarks/goodput.py` runs.

Each is told what its paper assumes: a predictor's lengths for those that use lengths, the plan for those that look
at programs. Parameters are those of the papers where a paper names them. docs/decisions/065 says which were varied,
and with what result. `contenders` adds the forms of Concord and finds a contender by its name.
"""

from __future__ import annotations

from functools import partial

from benchmarks.replay.baselines.plas import Plas, PlasOptions
from benchmarks.replay.baselines.program_srpt import PacedProgramSrpt, ProgramSrpt
from benchmarks.replay.baselines.single_key import LearningToRank, classes, edf, fcfs, least_laxity, srpt
from benchmarks.replay.types import Contender, Knowledge, Lengths, Stock, Structure

_BLIND = Knowledge(Lengths.NONE, Structure.HIDDEN)
_CALLS = Knowledge(Lengths.PREDICTED, Structure.HIDDEN)  # lengths, and nothing of programs
_PLAN = Knowledge()  # what Concord is told
_TRUE = _PLAN.as_oracle()


BASELINES: tuple[Contender, ...] = (
    Contender("fcfs", Stock(), _BLIND, about="vLLM as it is: first come, first served, chunked prefill (Sarathi)"),
    Contender("fcfs-whole", Stock(chunked_prefill=False), _BLIND, about="the same with every prefill in one piece"),
    Contender("fcfs-drop", partial(fcfs, 2.0), _BLIND, about="FCFS; not admitted within 2 s, dropped"),
    Contender(
        "classes", partial(classes, displace=True), _CALLS, about="static priority: latency, deadline, compound"
    ),
    Contender("edf", edf, _BLIND, about="earliest deadline first"),
    Contender("edf-feasible", partial(edf, 0.1), _CALLS, about="EDF that refuses calls that cannot be met"),
    Contender(
        "edf-feasible-preempting",
        partial(edf, 0.1, True),
        _CALLS,
        about="the same, displaces running calls",
        preempts=True,
    ),
    Contender(
        "edf-plan", partial(edf, 0.5), _PLAN, about="EDF that refuses by medians what cannot be met, stages included"
    ),
    Contender(
        "edf-plan-preempting",
        partial(edf, 0.5, True),
        _PLAN,
        about="the same, displaces running calls",
        preempts=True,
    ),
    Contender("least-laxity", partial(least_laxity, 0.1), _PLAN, about="least laxity first, refuses likewise"),
    Contender("ltr", LearningToRank, _CALLS, about="learning to rank: the shortest answer by a ListMLE head"),
    Contender(
        "ltr-preempting",
        partial(LearningToRank, displace=0.0),
        _CALLS,
        about="the same, displaces running calls of lower rank, as the paper's batches do",
        preempts=True,
    ),
    Contender(
        "plas", partial(Plas, PlasOptions(preempts=False)), _BLIND, about="Autellix: program-level attained service"
    ),
    Contender(
        "plas-preempting", Plas, _BLIND, about="the same, displaces running calls, as in the paper", preempts=True
    ),
    Contender(
        "atlas",
        partial(Plas, PlasOptions(critical_path=True, preempts=False)),
        _BLIND,
        about="Autellix, by critical path",
    ),
    Contender(
        "srpt-oracle",
        srpt,
        Knowledge(Lengths.ORACLE, Structure.HIDDEN),
        about="shortest remaining call, true lengths",
    ),
    Contender(
        "srpt-oracle-gpu",
        partial(srpt, gpu=True),
        Knowledge(Lengths.ORACLE, Structure.HIDDEN),
        about="the same by GPU time: what a call takes from the others, not how long it takes",
    ),
    Contender("program-srpt", ProgramSrpt, _PLAN, about="shortest remaining program, by GPU time"),
    Contender(
        "program-srpt-preempting",
        partial(ProgramSrpt, displace=0.2),
        _PLAN,
        about="the same, displaces running calls for programs a fifth shorter",
        preempts=True,
    ),
    Contender("program-srpt-paced", PacedProgramSrpt, _PLAN, about="the same, with Concord's pace"),
    Contender("program-srpt-oracle", ProgramSrpt, _TRUE, about="the same with true lengths"),
)

# Program-level SRPT uses Concord's own job index. So it has a row of its own, and does not count as the best
# baseline.
PUBLISHED: tuple[Contender, ...] = tuple(one for one in BASELINES if not one.name.startswith("program-srpt"))
