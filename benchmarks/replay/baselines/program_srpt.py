"""Shortest remaining *program* first, by GPU time: the honest strong baseline.

It knows all that Concord knows (the plan's later stages, prefill net of the prefix cache, siblings as one unit,
what can still be met), and uses the same numbers. It lacks the rest of Concord: order by laxity while everything
fits, floors for classes, displacement only where it pays, and order statistics of fork groups.
"""

from __future__ import annotations

from math import exp

from ramify.serving.policy.concord.job_index import JobIndex
from ramify.serving.policy.concord.jobs import NEVER, Job
from ramify.serving.policy.cost_model import pace_s
from ramify.serving.policy.types import Finished, Refusal, Verdict, View


class ProgramSrpt:
    """Shortest remaining program first.

    `refuse`: quantile of the length for refusing a call that cannot be met; None: nothing is refused. `displace`:
    by what share a program must be shorter than the one whose slot it takes; None: never.
    """

    def __init__(self, rank: float = 0.5, refuse: float | None = 0.1, displace: float | None = None) -> None:
        self._index = JobIndex(rank, 0.1 if refuse is None else refuse, 120.0, 1.0)
        self._refuse, self._displace = refuse is not None, displace

    def observe(self, done: Finished) -> None:
        self._index.learn(done)

    def decide(self, view: View, now: float) -> Verdict:
        index, capacity = self._index, view.capacity
        index.follow(view, pace_s(capacity, view.running))
        drop: list[Job] = []
        queue: list[Job] = []
        for job in index.jobs(index.by_density()):  # every weight is 1, so the densest is the shortest
            late = self._refuse and job.late_at <= now and job.view.generated == 0
            (drop if late else queue).append(job)
        paused = {call.id for call in view.paused}
        chosen = queue[: capacity.free]
        victims = []
        if self._displace is not None and capacity.can_preempt:
            worst = sorted(index.jobs_of(view.running), key=lambda job: (job.density, -job.id))
            for job, victim in zip(queue[len(chosen) :], worst, strict=False):
                if 1 / job.density >= (1 - self._displace) / victim.density or job.unit == victim.unit is not None:
                    break
                chosen.append(job)
                victims.append(victim.id)
        placed = {job.id for job in chosen}
        admit = tuple([job.id for job in chosen if job.id not in paused])
        rest = [job.id for job in queue if job.id not in placed and job.id not in paused]
        return Verdict(
            admit=admit,
            order=(*admit, *rest),
            preempt=() if capacity.can_pause else tuple(victims),
            pause=tuple(victims) if capacity.can_pause else (),
            resume=tuple([job.id for job in chosen if job.id in paused]),
            drop=tuple([Refusal(job.id, "it cannot be met any more") for job in drop]),
            wake_at=min([job.late_at for job in queue if self._refuse and now < job.late_at < NEVER], default=None),
        )


_LATELY_S = 10.0
_MOST = 0.7  # largest share of the GPU's time that counts as taken by prompts


class PacedProgramSrpt(ProgramSrpt):
    """Program-level SRPT with Concord's pace: the share of each second that prompts took lately is not the streams'.

    Without it, and more so with tight limits, calls are kept that cannot be met (docs/decisions/046).
    """

    def __init__(self, refuse: float = 0.1) -> None:
        super().__init__(refuse=refuse)
        self._index = self._paced = _PacedIndex(0.5, refuse, 120.0, 1.0)
        self._at = 0.0

    def decide(self, view: View, now: float) -> Verdict:
        self._paced.lately_s *= exp((self._at - now) / _LATELY_S)
        self._at = now
        return super().decide(view, now)


class _PacedIndex(JobIndex):
    lately_s = 0.0  # GPU time of prompts, decaying

    def follow(self, view: View, token_s: float | None = None, slowdown: float = 1.0) -> float:
        self.lately_s += self.started_s
        self.started_s = 0.0
        slower = slowdown / (1.0 - min(_MOST, self.lately_s / _LATELY_S))
        return super().follow(view, None if token_s is None else token_s * slower, slower)
