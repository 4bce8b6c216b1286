"""One request as the policy reckons with it, and how it is reckoned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ramify.serving.policy.cost_model import (
    LengthPrior,
    decode_gpu_s,
    prefill_s,
    remaining_quantiles,
    rest_gpu_s,
    rest_wall_s,
)
from ramify.serving.policy.goodput import Goodput, rest_worth, worth
from ramify.serving.policy.types import Capacity, RequestId, RequestView, SloClass, State

NEVER = float("inf")
_LEAST_SHARE = 0.5  # of later stages' times, in an optimistic bound


class Binding(NamedTuple):
    """A deadline, and what lies before it: decoding steps, and seconds that do not scale with the pace."""

    due: float
    tokens: float  # at the median length
    wall_s: float  # prefill, and the tools and stages that follow
    least_tokens: float  # the same, optimistically
    least_s: float


class Later(NamedTuple):
    """The stages that follow, at one pace: the same for as long as a call has the same `CompoundView`."""

    token_s: float
    gpu_s: float
    wall_s: float
    least_wall_s: float
    worth: float  # where goodput counts more than programs: 1 for each call, or for each token


_NOTHING_LATER = Later(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True, eq=False)
class Job:
    view: RequestView
    id: RequestId
    unit: str | None  # the stage or the fork group that it is a part of
    key: str | RequestId  # its unit's name; of what is by itself, its own
    binding: Binding  # the deadline that binds first
    admit_by: float
    own_tokens: float  # steps that it will hold a slot for, at the median length
    prefill_s: float  # GPU time of what it must prefill before that, and wall time beside `starts_s`
    gpu_s: float  # GPU time of its own answer
    later: Later  # the stages that follow
    work_s: float  # GPU time of its own, and its part of the stages that follow
    given: float  # what it is worth to the operator; of best effort, a part of that
    own: float  # what it adds to its program's worth; 0 where goodput counts programs
    weight: float  # what its program is worth in time
    counts: bool  # has an SLO: may be late, and is looked at in the test whether everything fits
    waits: bool  # holds no slot: waiting, preempted or paused
    starts_s: float = 0.0  # wall time of its start, however long its prompt is
    shared: bool = False  # more of its unit wait
    # Its unit's worth for each second of GPU time; rank sorts by it, siblings together, then by age.
    density: float = 0.0
    rank: tuple[float, float, int] = (0.0, 0.0, 0)
    # At the book's pace:
    start_by: float = 0.0  # the latest start that is in time
    late_at: float = NEVER  # from then on it cannot be in time, even if it is short
    before_s: float = 0.0  # what must be done before its deadline
    slot_s: float = 0.0  # how long it will hold a slot
    due: float = NEVER

    def set_pace(self, token_s: float) -> None:
        due, tokens, wall_s, least_tokens, least_s = self.binding
        self.due = due
        self.before_s = wall_s + tokens * token_s
        self.start_by = due - self.before_s
        self.slot_s = self.starts_s + self.prefill_s + self.own_tokens * token_s
        if self.counts:
            self.late_at = min(due - least_s - least_tokens * token_s, self.admit_by)


@dataclass(frozen=True, slots=True)
class JobFactory:
    """Makes jobs of views, for one engine."""

    prior: LengthPrior
    median: float  # quantiles of the length: for price and order,
    optimistic: float  # and for saying that a deadline cannot be met
    best_effort_s: float
    best_effort_weight: float
    goodput: Goodput = Goodput.WORKFLOW

    def job(self, call: RequestView, capacity: Capacity, token_s: float, old: Job | None = None) -> Job:
        """`old`: the same call's, from an earlier view and the same capacity."""
        group, compound, step = call.group, call.compound, capacity.step
        median, optimistic = self.median, self.optimistic
        if group is not None:  # the join comes with the k-th of n: that order statistic's place in the distribution
            median = group.need / (group.size + 1)
            optimistic = min(optimistic, median)
        own, least = remaining_quantiles(call, self.prior, median, optimistic)
        holds_kv = call.state is State.RUNNING or call.state is State.PAUSED
        to_prefill = max(1, call.prompt_tokens - call.computed) if holds_kv else call.to_prefill
        prefill = prefill_s(step, to_prefill)
        starts = 0.0 if holds_kv and call.computed else step.per_call_ms / 1000
        gpu = decode_gpu_s(step, capacity.slots, call.prompt_tokens + call.generated, own)
        later, width = _NOTHING_LATER, 1
        if compound is not None:
            width = max(1, compound.width)
            if old is not None and old.view.compound is compound and old.later.token_s == token_s:
                later = old.later
            elif compound.rest:
                later = _later(call, capacity, token_s, self.goodput)
        best_effort = call.slo_class is SloClass.BEST_EFFORT
        same_unit = old is not None and old.view.compound is compound and old.view.group is group
        unit = old.unit if old is not None and same_unit else _unit(call)
        part = self.best_effort_weight if best_effort else 1.0
        given = call.weight * part
        adds = 0.0 if self.goodput is Goodput.WORKFLOW else part * worth(self.goodput, call, own)
        weight = self.worth(call, given, adds, later)
        work = prefill + gpu + later.gpu_s / width
        density = weight / (prefill + gpu + later.gpu_s)
        job = Job(
            call,
            call.id,
            unit,
            call.id if unit is None else unit,
            self._binding(call, later, own, least, starts + prefill, token_s),
            NEVER if call.admit_by is None or call.generated else call.admit_by,
            own,
            prefill,
            gpu,
            later,
            work,
            given,
            adds,
            weight,
            not best_effort,
            call.state is not State.RUNNING,
            starts,
            False,
            density,
            (-density, call.arrived, call.id),
        )
        job.set_pace(token_s)
        return job

    def worth(self, call: RequestView, given: float, adds: float, later: Later) -> float:
        """Of the program that `call` belongs to; `adds`: the sum over the calls of its stage.

        A workflow is in time as a whole or not at all: what its stages so far were worth is at stake too. They are
        taken to be worth as much each as those still to come, where it is known how many there are."""
        if self.goodput is Goodput.WORKFLOW:
            return given
        whole, compound = adds + later.worth * given, call.compound
        if compound is not None and compound.stages is not None and compound.stages > compound.stage:
            whole *= compound.stages / (compound.stages - compound.stage)
        return whole

    def _binding(
        self, call: RequestView, later: Later, own: float, least: float, prefill: float, token_s: float
    ) -> Binding:
        """Of all the deadlines that a request has, the one whose latest start comes first."""
        found = []
        if call.ttft is not None and call.generated == 0:
            found.append(Binding(call.ttft, 1.0, prefill, 0.0, prefill))
        if call.deadline is not None:
            found.append(Binding(call.deadline, own, prefill, least, prefill))
        compound = call.compound
        if compound is not None and compound.deadline is not None:
            due = compound.deadline
            found.append(Binding(due, own, prefill + later.wall_s, least, prefill + later.least_wall_s))
        if call.tbt is not None:  # the last token is due at TTFT + n · TBT (thesis, chapter 3)
            begin = call.arrived if call.ttft is None else call.ttft
            found.append(Binding(begin + (call.generated + own) * call.tbt, own, prefill, 0.0, 0.0))
        if len(found) == 1:
            return found[0]
        if found:
            return min(found, key=lambda binding: binding.due - binding.wall_s - binding.tokens * token_s)
        return Binding(call.arrived + self.best_effort_s, own, prefill, 0.0, -NEVER)


def _later(call: RequestView, capacity: Capacity, token_s: float, goodput: Goodput) -> Later:
    wall_s = rest_wall_s(call, capacity, token_s)
    least_s = rest_wall_s(call, capacity, token_s, _LEAST_SHARE)
    return Later(token_s, rest_gpu_s(call, capacity), wall_s, least_s, rest_worth(goodput, call))


def _unit(call: RequestView) -> str | None:
    if call.compound is not None:
        return f"c\0{call.compound.id}\0{call.compound.stage}"
    return None if call.group is None else f"g\0{call.group.id}"
