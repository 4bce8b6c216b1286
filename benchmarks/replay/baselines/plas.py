"""Autellix (Luo et al. 2025, arXiv 2502.13965): program-level attained service, without knowing any length.

A call's priority is the service that its program has had: PLAS adds up the execution times of ended calls (§4.2.1).
ATLAS, for programs with parallel calls, takes the longest chain of them. Priorities fall into queues whose bounds
grow geometrically. A call moves down a queue when it has used up the quantum of its own. Within a queue calls are
served by arrival. A program that waited `beta` times as long as it was served is promoted to the first queue
(§4.2.2, algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from benchmarks.replay.baselines.ordered import Ordered, Scene, late_at
from ramify.serving.policy.cost_model import pace_s, prefill_s
from ramify.serving.policy.types import Capacity, Finished, RequestId, RequestView, Verdict, View

_FORGET_S = 600.0  # a program that was not seen for so long counts as ended


@dataclass(frozen=True, slots=True)
class PlasOptions:
    critical_path: bool = False  # ATLAS
    first_s: float = 2.0  # the first queue's bound, in seconds of service
    growth: float = 2.0  # of the bounds
    queues: int = 8
    beta: float | None = None  # for the promotion; None: no program is promoted
    preempts: bool = True  # a call of a better queue takes the slot of one in a worse queue


@dataclass(frozen=True, slots=True)
class _Entry:
    """A program in the process table."""

    served_s: float = 0.0  # PLAS: of all calls that ended. ATLAS: of the longest chain of them
    before_s: float = 0.0  # ATLAS: service at the start of the present stage
    stage: int = 0
    at: float = 0.0  # when it was last seen


class Plas:
    def __init__(self, options: PlasOptions | None = None) -> None:
        self.options = options or PlasOptions()
        self._table: dict[str, _Entry] = {}
        self._capacity: Capacity | None = None
        self._token_s, self._now = 0.0, 0.0
        self._moved_on: set[str] = set()  # programs whose entries have changed since the last decision
        self._order = Ordered(self._level, displace=0.0 if self.options.preempts else None)

    def decide(self, view: View, now: float) -> Verdict:
        self._capacity, self._token_s, self._now = view.capacity, pace_s(view.capacity, view.running), now
        self._order.forget(self._moved(view))
        self._moved_on.clear()
        return replace(self._order.decide(view, now), wake_at=None)

    def _moved(self, view: View) -> list[RequestId]:
        """Return the calls whose queue may have changed.

        These are calls that were served, calls whose program was served, and with promotions all calls.
        """
        every = self.options.beta is not None
        return [
            call.id
            for calls in (view.waiting, view.running, view.paused)
            for call in calls
            if call.generated or every or (call.compound is not None and call.compound.id in self._moved_on)
        ]

    def observe(self, done: Finished) -> None:
        """Add an ended call to the service of its program (algorithm 1, Update_Process_Table)."""
        compound = done.view.compound
        if compound is None:
            return
        self._moved_on.add(compound.id)
        entry = self._table.get(compound.id, _Entry())
        own = self._service_s(done.view)
        if not self.options.critical_path:
            served = entry.served_s + own
        else:
            if compound.stage != entry.stage:
                entry = replace(entry, before_s=entry.served_s, stage=compound.stage)
            served = max(entry.served_s, entry.before_s + own)
        self._table[compound.id] = replace(entry, served_s=served, at=done.at)
        if compound.last:
            self._forget(done.at)

    def _forget(self, now: float) -> None:
        for old in [key for key, entry in self._table.items() if entry.at < now - _FORGET_S]:
            del self._table[old]
            self._moved_on.add(old)

    def _service_s(self, call: RequestView) -> float:
        """Return the execution time that a call has had: its prefill, and a step for each token."""
        if self._capacity is None or call.generated == 0:
            return 0.0
        prompt = call.prompt_tokens - call.cached_tokens
        return prefill_s(self._capacity.step, prompt) + call.generated * self._token_s

    def _level(self, call: RequestView, scene: Scene) -> float:
        """Return the number of the call's queue.

        It depends on the engine's pace, the program's service and, with promotions, the time. A key must not depend
        on these, so `_moved` lists the calls whose keys are computed again.
        """
        options = self.options
        if call.compound is None and call.generated == 0 and options.beta is None:
            return 0.0  # no service and no promotion: most waiting calls
        entry = _Entry() if call.compound is None else self._table.get(call.compound.id, _Entry())
        before = entry.before_s if options.critical_path and call.compound else entry.served_s
        if options.critical_path and call.compound is not None and call.compound.stage != entry.stage:
            before = entry.served_s
        own = self._service_s(call)
        if options.beta is not None and call.generated == 0:
            waited = self._now - call.arrived
            if waited >= options.beta * max(before, options.first_s):
                return 0.0
        served, bound, level = before + own, options.first_s, 0
        while served > bound and level < options.queues - 1:
            level += 1
            bound += options.first_s * options.growth**level
        return float(level)


class RefusingPlas(Plas):
    """PLAS that refuses what cannot be met by this quantile of a predicted length, and displaces nothing.

    Its paper knows neither lengths nor deadlines.
    """

    def __init__(self, quantile: float = 0.1) -> None:
        super().__init__(PlasOptions(preempts=False))
        self._order = Ordered(self._level, partial(late_at, quantile=quantile))
