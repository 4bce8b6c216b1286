"""Which job gets a slot that becomes free, where more wait than slots are free: the rules of
`ramify.serving.matching` for the slots of a fleet. No I/O.

A *job* is what asks for several slots: a run with its branches, a world with its forks, or what the program names
(`job=`). Jobs with the same requirement are a group. The nodes that suit the same groups are one atom. Its rate is
the number of their slots. It is not the rate at which slots became free: that would depend on who held them.

**Demand** is the number of slots that a job waits for. `ScarcityPriced` also uses what the fleet learns: how long
slots of a kind are held, and what a job has received that asks again and again. A job that took long so far will
probably take as long again.

**Locality** is in the demand. It is larger by `FETCH` slots on a node that lacks the state that the job begins with,
because a slot is held while the state is fetched.

Of the requests of one job, the one goes first whose state the node has, and otherwise the oldest. One that has waited
for `PATIENT_S` goes first in any case: others that keep coming with a state that is there would hold it up for ever.

**Tiers** are soft. A job whose tier does not include a node comes after the others. It is served there if nobody else
waits for that node.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ramify.fleet.node_tiers import NodeTiers
from ramify.fleet.placement import NO_JOB, Asked, Member, Slot
from ramify.serving.matching import (
    Atom,
    Group,
    JobId,
    Matching,
    RandomOrder,
    Request,
    ScarcityPriced,
    Srsf,
    Venn,
)

FETCH = 2.0
"""Slots that fetching a whole state counts as."""

PATIENT_S = 60.0
"""Seconds for which requests of the same job whose state the node has may go first."""

FORGET_S = 600.0
"""Seconds after which a job is forgotten that neither waits nor holds a slot."""

_LEARN = 0.2
"""The weight of a new time in a mean."""

_MOST_KINDS = 1000

_TIERS = 2

FIFO = "fifo"

FAIRNESS = {"price": 2.0, "venn": 0.0}
"""The rules that know fairness, and its default."""

MOST_FAIRNESS = 16.0
"""It is an exponent of times, and a power that no float holds would end the queue."""

RULES: Mapping[str, Callable[[float, random.Random], Matching]] = {
    "price": lambda fairness, _: ScarcityPriced(fairness),
    "venn": lambda fairness, _: Venn(fairness),
    "srsf": lambda _, __: Srsf(),
    "random": lambda _, source: RandomOrder(source),
}


def order_of(matching: str, fairness: float | None, source: random.Random) -> JobOrder | None:
    """The order of that name; None for "fifo". fairness: None for the default of the rule. Raises ValueError if there
    is no such rule, or if it knows no fairness."""
    if matching not in (*RULES, FIFO):
        raise ValueError(f"matching={matching!r}: one of {', '.join(sorted([*RULES, FIFO]))}")
    if fairness is not None and (matching not in FAIRNESS or not 0 <= fairness <= MOST_FAIRNESS):
        raise ValueError(f"fairness={fairness:g}: 0 to {MOST_FAIRNESS:g}, for {' and '.join(FAIRNESS)}")
    if matching == FIFO:
        return None
    tiers = NodeTiers(_TIERS, source) if matching == "venn" else None
    return JobOrder(RULES[matching](FAIRNESS.get(matching, 0.0) if fairness is None else fairness, source), tiers)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waits for a slot, since that time. group: of `asked`."""

    asked: Asked
    group: Group
    since: float


@dataclass(slots=True)
class _Job:
    """begun: when it first asked. held: its slots now. since_s: the sum of the times since when. served_s: for how
    long it held those that it gave back. last: when it last asked, or gave one back."""

    begun: float
    last: float
    held: int = 0
    since_s: float = 0.0
    served_s: float = 0.0

    def received_s(self, now: float) -> float:
        return self.served_s + self.held * now - self.since_s


@dataclass(slots=True)
class _Asking:
    """What a job asks for at present, of one group. oldest: what it asked first. best: the position of what it would
    have served first on the node in question. share: of its state that the node has."""

    oldest: Waiting
    best: int
    share: float
    many: int = 1


class JobOrder:
    """rule: gives the order of jobs. tiers: None is without."""

    def __init__(self, rule: Matching, tiers: NodeTiers | None = None) -> None:
        self._rule, self._tiers = rule, tiers
        self._jobs: dict[JobId, _Job] = {}
        self._held_s: dict[str, float] = {}  # the mean time of a slot, by kind
        self._mean_s: float | None = None  # of all kinds
        self._looked = 0.0

    def asked(self, waiting: Waiting) -> None:
        """Something waits for a slot."""
        if (job := waiting.asked.job) != NO_JOB:
            known = self._jobs.setdefault(job, _Job(waiting.since, waiting.since))
            known.last = waiting.since

    def began(self, slot: Slot[Any], waiting: Waiting) -> None:
        """It got one."""
        if (job := self._jobs.get(slot.asked.job)) is not None:
            job.held, job.since_s = job.held + 1, job.since_s + slot.since
            if self._tiers is not None:
                self._tiers.began(slot.asked.job, slot.since - waiting.since)

    def ended(self, slot: Slot[Any], now: float) -> None:
        """It gave the slot back."""
        took = now - slot.since
        if (job := self._jobs.get(slot.asked.job)) is not None:
            job.held, job.since_s, job.served_s, job.last = (
                job.held - 1,
                job.since_s - slot.since,
                job.served_s + took,
                now,
            )
            if self._tiers is not None:
                usual = self._time_of(slot.asked)
                self._tiers.ended(slot.asked.job, slot.member.node.id, took, usual, round_over=not job.held)
        self._learn(slot.asked, took)

    def first(
        self,
        waiting: Sequence[Waiting],
        member: Member[Any],
        fits: Mapping[Group, Sequence[Member[Any]]],
        members: Sequence[Member[Any]],
        now: float,
        ready: Set[Group],
    ) -> int:
        """The position of what gets a slot of `member`. fits: the nodes that suit a group. ready: the groups, at
        least one, for which `member` has room now."""
        rates, atom = _rates(members, fits, member)
        asks = _by_job(waiting, member, now)
        many = len({one.oldest.asked.job for one in asks if one.oldest.asked.job} | self._holders())
        many += sum(not one.oldest.asked.job for one in asks)
        slots = {group: max(sum(node.slots for node in nodes), 1) for group, nodes in fits.items()}
        requests = [self._request(str(at), one, slots[one.oldest.group], many, now) for at, one in enumerate(asks)]
        ranked = [asks[int(id)] for id in self._rule.order(requests, rates)[atom]]
        if self._tiers is not None:
            tiers = self._tiers
            ranked.sort(key=lambda one: not tiers.accepts(one.oldest.asked.job, member.node.id))
        return next(one.best for one in ranked if one.oldest.group in ready)

    def _request(self, id: str, one: _Asking, slots: int, many: int, now: float) -> Request:
        """slots: of the nodes that suit it. many: jobs at this time."""
        asked, job = one.oldest.asked, self._jobs.get(one.oldest.asked.job)
        received = 0.0 if job is None else job.received_s(now)
        usual, mean = self._time_of(asked), self._mean_s or 1.0
        demand = one.many + FETCH * (1.0 - one.share)
        left = demand * usual / mean + (received / mean if asked.returns else 0.0)
        alone = max(usual, (one.many * usual + received) / slots)
        return Request(
            JobId(id),
            one.oldest.group,
            demand,
            one.oldest.since,
            left=left,
            age_s=now - (one.oldest.since if job is None else job.begun),
            served_s=received,
            fair_s=many * alone,
        )

    def _holders(self) -> set[JobId]:
        return {id for id, job in self._jobs.items() if job.held}

    def _time_of(self, asked: Asked) -> float:
        """For how long such a slot is held, as far as is known."""
        return self._held_s.get(asked.kind or asked.job, self._mean_s or 1.0)

    def _learn(self, asked: Asked, took: float) -> None:
        kind = asked.kind or asked.job
        before = self._held_s.pop(kind, took)
        self._held_s[kind] = before + _LEARN * (took - before)
        if len(self._held_s) > _MOST_KINDS:
            del self._held_s[next(iter(self._held_s))]  # the one that was not used for longest
        self._mean_s = took if self._mean_s is None else self._mean_s + _LEARN * (took - self._mean_s)

    def forget(self, waiting: Iterable[Waiting], now: float) -> None:
        """Forget the jobs that are over. Call it from time to time, with all that waits."""
        if now - self._looked < FORGET_S:
            return
        self._looked = now
        waits = {one.asked.job for one in waiting}
        for id in [id for id, job in self._jobs.items() if not job.held and now - job.last >= FORGET_S]:
            if id not in waits:
                del self._jobs[id]
                if self._tiers is not None:
                    self._tiers.forget(id)


def _rates(
    members: Sequence[Member[Any]], fits: Mapping[Group, Sequence[Member[Any]]], member: Member[Any]
) -> tuple[dict[Atom, float], Atom]:
    """The slots of each atom, and the atom of a node."""
    rates: dict[Atom, float] = {}
    atom: Atom = frozenset()
    for node in members:
        suits: Atom = frozenset(group for group, nodes in fits.items() if node in nodes)
        rates[suits] = rates.get(suits, 0.0) + node.slots
        atom = suits if node is member else atom
    return rates, atom


def _by_job(waiting: Sequence[Waiting], member: Member[Any], now: float) -> list[_Asking]:
    """Of each job and group the one that has most of its state on `member`, and among these the oldest; the oldest of
    all if it has lost its patience. `waiting` is in the order of asking."""
    found: dict[tuple[object, Group], _Asking] = {}
    for at, one in enumerate(waiting):
        share = 1.0 if one.asked.near == member.node.id else member.share_of(one.asked)
        key = (one.asked.job or at, one.group)
        if (known := found.get(key)) is None:
            found[key] = _Asking(one, at, share)
            continue
        known.many += 1
        if share > known.share and now - known.oldest.since < PATIENT_S:
            known.best, known.share = at, share
    return list(found.values())
