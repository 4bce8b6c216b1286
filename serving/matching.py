"""Matching devices (world slots, nodes, replicas) to jobs that ask for several at once: Venn and simpler rules. Pure.

A `Matching` is a rule. Times are in seconds, rates in devices a second. Nothing here lists devices: devices with the
same eligibility are one `Atom` with a rate.

- `Fifo`, `Srsf` and `RandomOrder` order jobs without regard to which devices others can use: the baselines of Venn's
  evaluation.
- `ScarcityPriced` is ours: one price a job, the devices that it still needs times how many others could use them.
  Venn keeps scarce devices for those who can use nothing else by moving sets of devices between groups. A price does
  it with one sort: left · (|S_j| / |S|)^2, lowest first. Over the workloads of Venn's evaluation it is as good as
  algorithm 3 with the same knowledge (docs/how-to/match-jobs.md), so it is kept instead. It uses what Venn does not:
  how many devices a job's further rounds need, which a run's plan and journal say.
- `Venn` is faithful: which group of jobs gets the devices that several groups can use (Liu et al., algorithm 3). Two
  errors of the printed algorithm are corrected after its text and lemma 3. Line 12 compares m'_j/|S'_j| with
  m'_k/|S'_k|, of what k holds *now*; it prints |S_k|. Line 13 moves S_j ∩ S'_k; it prints S_j ∩ S_k, which takes
  devices that a third group owns. Where the text is open: groups k are asked from the most abundant one on, as "it
  should first take the resources from job groups with relatively abundant resources" says.
- `TierMatching` is Venn's second half (algorithm 4): it gives a request devices of one tier of capability, so that
  its slowest one is not slow. Tiers cost time to fill and save time to respond. A tier u of V is used if V + g_u·c <
  1 + c, where c is the job's response time over its scheduling delay, and g_u the 95th percentile of tier u's
  response times over that of all.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol

JobId = NewType("JobId", str)

Group = NewType("Group", str)
"""A requirement: all jobs with equal requirements are a group."""

Atom = frozenset[Group]
"""The requirements that a device meets. Devices of one atom are interchangeable for every order of jobs."""

Rates = Mapping[Atom, float]
"""How many devices of each atom become free a second, averaged over a long time (Venn: 24 hours)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A job's outstanding request. remaining: devices that it still needs for this round; other costs may be counted
    as devices. left: devices of all rounds to come, this one included, None if nobody knows. age_s: since the job
    arrived. served_s: service that the job has received. fair_s: M · (time alone), where M is the number of jobs at
    once."""

    job: JobId
    group: Group
    remaining: float
    arrived: float
    left: float | None = None
    age_s: float = 0.0
    served_s: float = 0.0
    fair_s: float = 0.0


Order = Mapping[Atom, Sequence[JobId]]
"""For each atom the jobs that its devices go to, first one first; jobs that need no more are passed over."""


class Matching(Protocol):
    """A rule. It is asked again whenever a request comes or is done."""

    def order(self, requests: Sequence[Request], rates: Rates) -> Order: ...


def eligible(group: Group, rates: Rates) -> set[Atom]:
    """Return the atoms whose devices meet a requirement: S_j."""
    return {atom for atom in rates if group in atom}


def size(atoms: set[Atom], rates: Rates) -> float:
    """Return |S|: the rate of devices of these atoms."""
    return sum(rates[atom] for atom in atoms)


def _by(requests: Sequence[Request], rates: Rates, key: Callable[[Request], tuple[float, ...]]) -> Order:
    ranked = sorted(requests, key=key)
    return {atom: [one.job for one in ranked if one.group in atom] for atom in rates}


class Fifo:
    """The job that arrived first is served first."""

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        return _by(requests, rates, lambda one: (one.arrived,))


class Srsf:
    """Shortest remaining service first: the request that needs the fewest devices."""

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        return _by(requests, rates, lambda one: (one.remaining, one.arrived))


@dataclass
class RandomOrder:
    """Jobs in a random order, drawn anew at each call: the "optimized random matching" of Venn's evaluation, under
    which fewer rounds are aborted than if each device chose a job by itself."""

    random: random.Random
    _ranks: dict[str, float] = field(default_factory=dict)

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        self._ranks = {one.job: self.random.random() for one in requests}
        return _by(requests, rates, lambda one: (self._ranks[one.job],))


ABUNDANCE = 2.0
"""The exponent of |S_j| / |S|. 1, 2 and 4 were tried, on seeds that the evaluation does not use."""


@dataclass(frozen=True)
class ScarcityPriced:
    """patience: lowers the price of a job that takes longer than its fair share T = M · (time alone), by
    (T / age)^patience; 0 is without. A job that is within its fair share is not touched, unlike under Venn's ε.
    """

    patience: float = 0.0

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        whole = sum(rates.values())
        share = {group: size(eligible(group, rates), rates) / whole for group in {one.group for one in requests}}

        def price(one: Request) -> float:
            left = one.remaining if one.left is None else one.left
            late = one.age_s / one.fair_s if one.fair_s else 0.0
            return float(left * share[one.group] ** ABUNDANCE / max(1.0, late) ** self.patience)

        ranked = sorted(requests, key=lambda one: (price(one), one.arrived))
        return {atom: [one.job for one in ranked if one.group in atom] for atom in rates}


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


FEWEST = 8
"""Responses that each tier needs before its percentile says anything."""

MOST = 10_000
"""Responses, the latest ones, that tiers are made of."""


@dataclass(slots=True)
class TierMatching:
    """The tiers of one job. tiers: V. random: chooses the tier of each request; the paper's `randint(0, V)` would
    include V, which is no tier.

    Higher capability is faster. A job that was not served before has no thresholds, and takes every device.
    """

    tiers: int
    random: random.Random
    _profile: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST))  # capability, time
    _bounds: list[float] = field(default_factory=list)
    _chosen: int | None = None

    def responded(self, capability: float, response_s: float) -> None:
        """Note a device that responded to this job."""
        self._profile.append((capability, response_s))

    def begin(self, schedule_s: float, response_s: float) -> None:
        """Choose for the next request. schedule_s, response_s: the job's means over earlier requests."""
        self._chosen = None
        if self.tiers < 2 or len(self._profile) < FEWEST * self.tiers or schedule_s <= 0:
            return
        capable = sorted(self._profile)
        width = len(capable) / self.tiers
        cut = [capable[round(width * tier) : round(width * (tier + 1))] for tier in range(self.tiers)]
        self._bounds = [part[0][0] for part in cut[1:]]
        tier = self.random.randrange(self.tiers)
        slowest = _percentile([time for _, time in capable])
        gain = _percentile([time for _, time in cut[tier]]) / slowest if slowest else 1.0
        ratio = response_s / schedule_s
        if self.tiers + gain * ratio < 1 + ratio:
            self._chosen = tier

    def accepts(self, capability: float) -> bool:
        """Whether a device is for the present request."""
        return self._chosen is None or bisect_right(self._bounds, capability) == self._chosen


def _percentile(times: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]
