"""Concord's options: three that an operator chooses, and the tuning that was found by replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ramify.serving.policy.cost_model import Goodput
from ramify.serving.policy.option_values import make_options
from ramify.serving.policy.types import SloClass

_AT_LEAST_0 = ("queue_s", "headroom", "reserve", "reserve_s", "client_share")


@dataclass(frozen=True, slots=True)
class ConcordTuning:
    """Parameters found by replay (docs/evaluation.md). An operator needs none of them.

    Raises ValueError, naming the option, if a value is out of range.
    """

    # Quantiles of the answer's length
    rank_quantile: float = 0.5  # for price and order
    reject_quantile: float = 0.1  # for saying that a deadline cannot be met

    # Best effort
    best_effort_s: float = 120.0  # default deadline of a request that names none, in seconds after its arrival
    best_effort_weight: float = 0.25  # worth of one in time beside a request with an SLO

    # Refusal
    foresee: bool = False  # refuse also what the calls before it will keep from starting in time

    # Clients
    client_share: float = 1.0  # part of an equal share of the slots that each client is sure of; 0: none

    # Displacement of running requests
    preempt_margin: float = 0.1  # by what share a displaced request's density must be exceeded
    contested_margin: float = 3.0  # the same if not all fit and it is worth no more than the other
    frame_s: float = 0.0  # displace at most once in so many seconds; 0: at every decision
    pace_streams: bool = False  # a stream may stand aside for as long as it is ahead of its schedule

    # Which requests are kept when not all fit
    queue_s: float = 0.1  # prompts that take longer than this together form a queue, even if slots are free
    headroom: float = 2.0  # nobody is left out while this many times the present work fits
    reserve: float = 4.0  # else only as much is kept as would fit if it were this many times the work,
    reserve_s: float = 20.0  # and, of the time after so many seconds,
    later_reserve: float = 4 / 3  # this many times: nobody knows that a rush lasts

    # Pace and steps
    prompts_s: float = 10.0  # time over which the share of prompts in each second is measured; 0: not counted
    protect_tbt: bool = True  # limit the prompt tokens of a step by the tightest time between tokens

    def __post_init__(self) -> None:
        for name in _AT_LEAST_0:
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} is {getattr(self, name):g}: it must not be below 0")
        if self.later_reserve <= 0.0:
            raise ValueError(f"later_reserve is {self.later_reserve:g}: it must be above 0")


@dataclass(frozen=True, slots=True)
class ConcordOptions:
    goodput: Goodput = Goodput.WORKFLOW  # what should be in time: programs, calls or tokens
    refuse: bool = True  # refuse what cannot be met; False: serve it last
    # share of the slots that a class gets whatever the others are worth
    floors: Mapping[SloClass, float] = field(
        default_factory=lambda: {SloClass.LATENCY: 0.25, SloClass.BEST_EFFORT: 0.05}
    )
    tuning: ConcordTuning = field(default_factory=ConcordTuning)

    @classmethod
    def from_names(cls, **options: Any) -> ConcordOptions:
        """Make options from flat names, as users write them: those of ConcordTuning stand beside the three.

        Raises ValueError for an unknown name or a bad value.
        """
        (made,) = make_options(options, cls)
        return made  # type: ignore[no-any-return]
