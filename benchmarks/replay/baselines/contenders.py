"""All contenders of the evaluation by name: the baselines, and the forms of Concord and CALM."""

from __future__ import annotations

from functools import partial

from benchmarks.replay.baselines import BASELINES
from benchmarks.replay.baselines.plas import RefusingPlas
from benchmarks.replay.baselines.single_key import LearningToRank, fcfs, least_laxity, ltr_refusing
from benchmarks.replay.errors import ReplayError
from benchmarks.replay.types import Contender, Knowledge, Lengths, Structure
from ramify.serving.policy.registry import make_policy

_CONCORD = partial(make_policy, "concord")
_TOKENS = partial(_CONCORD, goodput="token")

# Section 4.2 without appendix B and equation D.5, as all recorded results are.
_PLAIN = partial(make_policy, "calm-thesis", appendix=False)
_CALM = partial(_PLAIN, goodput="request")
# The best form in simulation (docs/decisions/065). In replay the algorithm as written is better (docs/decisions/051).
_TUNED = partial(
    _PLAIN,
    goodput="request",
    waiting_s=None,
    starvation_step=0.0,
    cutoff=1.0,
    preempt_margin=float("inf"),
)
_TRUE = Knowledge().as_oracle()

PATIENT = Contender(
    "concord, nothing refused", partial(_CONCORD, refuse=False), ours=True, about="late work goes last"
)
OURS: tuple[Contender, ...] = (
    Contender("concord", _CONCORD, ours=True, about="the default"),
    Contender("concord-oracle", _CONCORD, _TRUE, ours=True, about="the same with true lengths and tool times"),
    Contender("concord-tokens", _TOKENS, ours=True, about="the default for token goodput"),
    Contender("concord-tokens-oracle", _TOKENS, _TRUE, ours=True, about="the same with true lengths and tool times"),
    PATIENT,
    Contender("calm-thesis", _CALM, ours=True, about="algorithm 4.1 for request goodput, as written", preempts=True),
    Contender("calm-thesis-oracle", _CALM, _TRUE, ours=True, about="the same with true lengths", preempts=True),
)
HIDDEN = Contender(
    "concord, stages hidden",
    _CONCORD,
    Knowledge(structure=Structure.HIDDEN),
    ours=True,
    about="the default without later stages: shows the worth of the compiled plan",
)
# Measured on held-out prompts (docs/decisions/055): the correlation of predicted and true length.
_ANALYZER, _RANKER = 0.48, 0.51
AS_MEASURED = "concord, lengths as measured"
ABLATED: tuple[Contender, ...] = (
    HIDDEN,
    Contender(
        AS_MEASURED,
        _CONCORD,
        Knowledge(correlation=_ANALYZER),
        ours=True,
        about="the default with lengths as good as the analyzer's on held-out prompts",
    ),
    Contender(
        "ltr, lengths as measured",
        LearningToRank,
        Knowledge(structure=Structure.HIDDEN, correlation=_RANKER),
        about="learning to rank with lengths as good as its head's on held-out prompts",
    ),
    Contender(
        "concord, mean lengths",
        _CONCORD,
        Knowledge(lengths=Lengths.MEAN),
        ours=True,
        about="the default without the request analyzer",
    ),
    Contender("concord, no floors", partial(_CONCORD, floors={}), ours=True, about="no share for a class"),
    Contender(
        "concord, density alone",
        partial(_CONCORD, headroom=float("inf"), reserve=1e9, later_reserve=1e9),
        ours=True,
        about="never by laxity",
    ),
    Contender(
        "concord, calls",
        partial(_CONCORD, goodput="request"),
        ours=True,
        about="the default with goodput counted in calls",
    ),
    Contender("concord, frames", partial(_CONCORD, frame_s=1.0), ours=True, about="displaces once a second"),
    Contender(
        "concord, paced streams",
        partial(_CONCORD, pace_streams=True),
        ours=True,
        about="a stream ahead of its schedule may stand aside",
    ),
    Contender(
        "calm-thesis, tuned",
        _TUNED,
        ours=True,
        about="without the thesis's waiting limit, starvation step, cutoff and preemption",
    ),
    Contender(
        "calm-thesis, appendix B",
        partial(_CALM, appendix=True),
        ours=True,
        about="with the scheduling filter of appendix B and the preemption threshold of equation D.5",
        preempts=True,
    ),
    Contender(
        "calm-thesis, tokens",
        _PLAIN,
        ours=True,
        about="algorithm 4.1 for token goodput",
        preempts=True,
    ),
)
# The gateway's other placement, for several engines (docs/decisions/058).
POWER_OF_K: tuple[Contender, ...] = (
    Contender(
        "concord, power of 2",
        _CONCORD,
        ours=True,
        about="the default with a policy and a queue for each engine; a call stands in two of them",
        placement_k=2,
    ),
    Contender(
        "calm-thesis, power of 2",
        _CALM,
        ours=True,
        about="algorithm 4.1 with the thesis's placement, in the queues of two engines",
        preempts=True,
        placement_k=2,
    ),
)
# Forms that refuse, of schedulers whose papers have no deadlines: by a call alone, as `edf-feasible`, or by the
# plan and medians, as `edf-plan`. The published forms stay as in their papers. Also least laxity by medians, and
# FCFS that drops after a shorter wait (docs/decisions/065).
_CALLS = Knowledge(structure=Structure.HIDDEN)
REFUSING: tuple[Contender, ...] = (
    Contender(
        "ltr, refusing",
        partial(LearningToRank, refuse=True),
        _CALLS,
        about="learning to rank that refuses calls that cannot be met",
    ),
    Contender(
        "ltr-preempting, refusing",
        partial(ltr_refusing, displace=True),
        _CALLS,
        about="the same, displaces running calls",
        preempts=True,
    ),
    Contender(
        "ltr-plan, refusing",
        partial(ltr_refusing, 0.5),
        about="learning to rank that refuses by medians, stages included",
    ),
    Contender(
        "ltr-plan-preempting, refusing",
        partial(ltr_refusing, 0.5, displace=True),
        about="the same, displaces running calls",
        preempts=True,
    ),
    Contender("plas, refusing", RefusingPlas, _CALLS, about="PLAS with lengths, refuses calls that cannot be met"),
    Contender(
        "plas-plan, refusing",
        partial(RefusingPlas, 0.5),
        about="PLAS with lengths and the plan, refuses by medians, stages included",
    ),
    Contender(
        "least-laxity, by medians", partial(least_laxity, 0.5), about="least laxity first, which refuses by medians"
    ),
    *(
        Contender(
            f"fcfs-drop, {wait:g} s",
            partial(fcfs, wait),
            Knowledge(Lengths.NONE, Structure.HIDDEN),
            about=f"FCFS; not admitted within {wait:g} s, dropped",
        )
        for wait in (1.0, 0.5, 0.25)
    ),
)
# No real scheduler: programs that the LP bound leaves out never reach it. What it meets, a schedule of this engine
# can meet, so that much of the bound can be reached (docs/decisions/065). It keeps no reserve, since everything is
# known to fit.
CLAIRVOYANT = Contender(
    "clairvoyant",
    partial(_CONCORD, reserve=1.0),
    _TRUE,
    ours=True,
    about="concord-oracle without a reserve, given only the programs that the LP bound serves",
)
CLAIRVOYANT_CAPACITY = 0.98  # share of the GPU's time that its LP may fill: effects finer than a bin need the rest
ALL = (*BASELINES, *OURS, *ABLATED, *POWER_OF_K, *REFUSING, CLAIRVOYANT)


def contender(name: str) -> Contender:
    """Return the contender of this name. Raises ReplayError, listing the names, if there is none."""
    for one in ALL:
        if one.name == name:
            return one
    raise ReplayError(f"no contender is called {name!r}: there are {', '.join(one.name for one in ALL)}")
