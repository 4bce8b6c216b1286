"""Which of what waits is worth waiting for: the most programs that can all be in time, and who is not among them.

On one machine the most jobs are in time if they are taken in the order of their deadlines, and, whenever one of them
does not fit any more, the longest of those taken so far is left out (Moore and Hodgson 1968). Here the machine is the
GPU, a job is a stage with the program that follows it, and the one left out is the least dense, which with equal
worths is the longest. What is left out is not refused: it stands behind what is kept, the densest first, and is asked
anew at the next decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ramify.serving.policy.jobs import Job
from ramify.serving.policy.types import RequestId


def left_out(waiting: Sequence[Job], running: Sequence[Job], reserve: float, now: float) -> set[str | RequestId]:
    """The keys of what is not kept. `waiting` has the earliest deadline first.

    Before each deadline the GPU must have time for `reserve` times the work due before it, later stages included,
    and then for the request itself; by medians. The reserve is for what has not come yet and will be denser. What
    has no SLO, or is late anyhow, is not asked about.
    """
    first_due = sorted([(job.due, job.work_s) for job in running if job.late_at > now], reverse=True)
    demand = 0.0
    # A heap, the least dense at its head, and of equals the youngest.
    kept: list[tuple[float, float, int, str | RequestId]] = []
    work: dict[str | RequestId, float] = {}
    out: set[str | RequestId] = set()
    for job in waiting:
        key = job.key
        if key in out or job.late_at <= now or not job.counts:
            continue
        while first_due and first_due[-1][0] <= job.due:
            demand += first_due.pop()[1]
        left = job.due - job.before_s - now
        mine = work.get(key, 0.0)
        # It is late by itself, or does not fit and is what would have to go.
        if left < 0.0 or (reserve * (demand - mine) > left and not (kept and kept[0][0] < job.density)):
            out.add(key)
            demand -= work.pop(key, 0.0)
            continue
        if key not in work:
            heappush(kept, (job.density, -job.view.arrived, -job.id, key))
        work[key] = mine + job.work_s
        demand += job.work_s
        while key in work and reserve * (demand - work[key]) > left:
            least = heappop(kept)[-1]
            out.add(least)
            demand -= work.pop(least, 0.0)
    return out
