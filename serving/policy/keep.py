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
from sys import float_info

from ramify.serving.policy.job import NEVER, Entry
from ramify.serving.policy.jobs import ByDeadline
from ramify.serving.policy.types import RequestId

_DENSEST = float_info.max  # where nothing is kept, so that nothing is denser


def keep(
    waiting: ByDeadline, running_due: Sequence[tuple[float, float]], reserve: float, now: float
) -> set[RequestId]:
    """What is kept. `running_due` has the earliest deadline first: the deadline and the work of each that runs and is
    not late.

    Before each deadline the GPU must have time for `reserve` times the work due before it, later stages included,
    and then for the request itself; by medians. The reserve is for what has not come yet and will be denser. What
    has no SLO, or is late anyhow, is not asked about.
    """
    demand, at = 0.0, 0
    next_due = running_due[0][0] if running_due else NEVER
    heap: list[Entry] = []  # the least dense at its head, and of equals the youngest
    head = _DENSEST  # the density at the heap's head
    units: dict[str, tuple[float, list[RequestId]]] = {}  # kept: their work so far, and the members met
    out: set[str] = set()  # units with a member that is left out
    jobs, entries, dues, starts, _, densities, late_at = waiting
    for i, (due, start_by, lone_density, entry) in enumerate(zip(dues, starts, densities, entries, strict=True)):
        if next_due <= due:
            while at < len(running_due) and running_due[at][0] <= due:
                demand += running_due[at][1]
                at += 1
            next_due = running_due[at][0] if at < len(running_due) else NEVER
        left = start_by - now
        # By itself, does not fit and is what would have to go; or it has no SLO.
        if lone_density <= head and reserve * demand > left:
            continue
        if late_at[i] <= now:
            continue
        _, _, _, mine, unit, id_ = entry
        if unit is None:
            if left < 0.0:
                continue
            heappush(heap, entry)
            demand += mine
        else:
            if unit in out:
                continue
            before_s, members = units.get(unit) or (0.0, [])
            density = jobs[i].density  # now: it changes with its siblings
            if left < 0.0 or (density <= head and reserve * (demand - before_s) > left):
                out.add(unit)
                units.pop(unit, None)
                demand -= before_s
                continue
            demand += mine
            mine += before_s
            if not members:
                heappush(heap, (density, *entry[1:3], 0.0, unit, id_))
            members.append(id_)
            units[unit] = mine, members
        while reserve * (demand - mine) > left:
            _, _, _, least_s, least, least_id = heappop(heap)
            if least is not None:
                out.add(least)
                least_s, _ = units.pop(least, (0.0, []))
            demand -= least_s
            if least_id == id_ or (unit is not None and least == unit):
                break
        head = heap[0][0] if heap else _DENSEST
    kept = {one[5] for one in heap if one[4] is None}
    kept.update(*[members for _, members in units.values()])
    return kept
