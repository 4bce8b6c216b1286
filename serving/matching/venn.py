"""Venn, faithfully: which group of jobs gets the devices that several groups can use (Liu et al., algorithm 3).

Two errors of the printed algorithm are corrected after its text and lemma 3. Line 12 compares m'_j/|S'_j| with
m'_k/|S'_k|, of what k holds *now*; it prints |S_k|. Line 13 moves S_j ∩ S'_k; it prints S_j ∩ S_k, which takes
devices that a third group owns. Where the text is open: groups k are asked from the most abundant one on, as "it
should first take the resources from job groups with relatively abundant resources" says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.serving.matching.types import Atom, Group, JobId, Order, Rates, Request, eligible, size


def allocate(queues: Mapping[Group, float], rates: Rates) -> dict[Atom, Group]:
    """Give each atom to one group (algorithm 3, lines 3 to 16). queues: m, the length of each group's queue.

    Costs O(n² · atoms) for n groups. Atoms that no group can use are left out.
    """
    can = {group: eligible(group, rates) for group in queues}
    scarce_first = sorted(queues, key=lambda group: (size(can[group], rates), group))
    held: dict[Group, set[Atom]] = {}
    free = set(rates)
    for group in scarce_first:
        held[group] = free & can[group]
        free -= held[group]
    waiting = dict(queues)
    abundant_first = scarce_first[::-1]
    for at, group in enumerate(abundant_first):
        if not size(held[group], rates):
            continue
        for other in abundant_first[at + 1 :]:
            shared = can[group] & held[other]
            if not shared or size(can[other], rates) >= size(can[group], rates):
                continue
            if waiting[group] / size(held[group], rates) <= waiting[other] / size(held[other], rates):
                break
            held[group] |= shared
            held[other] -= shared
            waiting[group] += waiting[other]
    return {atom: group for group, atoms in held.items() for atom in atoms}


@dataclass(frozen=True)
class Venn:
    """epsilon: the fairness knob ε of section 4.4.4; 0 is none. whole_jobs: order a group by what all rounds of a job
    still need, where it is known (section 4.4.2.1 allows it), and not by the present round.

    [?] The paper's t_i, "the time usage", must be service received: if it were time since arrival, a job that waits
    longer would have a larger demand d' = d(t/T)^ε, and wait for ever.
    """

    epsilon: float = 0.0
    whole_jobs: bool = False

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        groups: dict[Group, list[Request]] = {}
        for one in requests:
            groups.setdefault(one.group, []).append(one)
        for jobs in groups.values():
            jobs.sort(key=lambda one: (self._demand(one), one.arrived))
        owners = allocate({group: self._queue(jobs) for group, jobs in groups.items()}, rates)
        scarce_first = sorted(groups, key=lambda group: (size(eligible(group, rates), rates), group))
        return {atom: _served(atom, owners.get(atom), scarce_first, groups) for atom in rates}

    def _demand(self, one: Request) -> float:
        left = one.left if self.whole_jobs and one.left is not None else one.remaining
        return left * self._share(one.served_s, one.fair_s)

    def _queue(self, jobs: Sequence[Request]) -> float:
        served, fair = sum(one.served_s for one in jobs), sum(one.fair_s for one in jobs)
        return len(jobs) / max(self._share(served, fair), 1e-9)

    def _share(self, served_s: float, fair_s: float) -> float:
        return (served_s / fair_s) ** self.epsilon if self.epsilon and fair_s else 1.0


def _served(
    atom: Atom, owner: Group | None, scarce_first: Sequence[Group], groups: Mapping[Group, Sequence[Request]]
) -> list[JobId]:
    """Return the owner's jobs, and then those of other groups, so that no device is idle while a job could use it."""
    others = [group for group in scarce_first if group in atom and group != owner]
    return [one.job for group in ([owner] if owner else []) + others for one in groups[group]]
