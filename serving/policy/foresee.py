"""Which calls that wait cannot start in time, by what stands before them: they are refused now, not at their end.

A list schedule of the queue in the policy's own order: each call takes the slot that is free first, for as long as
its median length says. A call that would start too late takes none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ramify.serving.policy.job import Job

_SURE = 0.75  # of the predicted time: calls end early, or are called off


class Foreseen(NamedTuple):
    hopeless: list[tuple[Job, float]]  # with the seconds after which each could start
    wait_s: float  # of a call that came now and stood behind the whole queue


def foresee(slots: int, running_s: Sequence[float], queue: Iterable[Job], now: float) -> Foreseen:
    """`running_s`: seconds for which each call in the engine will hold its slot, shortest first. They may be more
    than the slots, where the engine holds calls in a queue of its own."""
    free_at = [0.0] * max(0, slots - len(running_s)) + list(running_s[:slots])
    if not free_at:
        return Foreseen([], 0.0)
    heapq.heapify(free_at)
    for held_s in running_s[slots:]:
        heapq.heapreplace(free_at, free_at[0] + held_s)
    hopeless = []
    for job in queue:
        wait_s = free_at[0]
        if job.counts and not job.view.generated and wait_s > 0.0 and now + _SURE * (wait_s + job.before_s) > job.due:
            hopeless.append((job, wait_s))
        else:
            heapq.heapreplace(free_at, wait_s + job.slot_s)
    return Foreseen(hopeless, free_at[0])
