"""A queue before each replica, and a dummy of each call in K of them: power of K, as the thesis has it (§4.3).

Each replica has a policy of its own, which sees what stands in its queue and what runs there, and nothing else. The
first policies to let a call in have its dummies; the best of these is its place, and the others are removed. A
replica that is gone gives its dummies back: their calls stand in other queues then. A call that one policy refuses
stands in the queue of a replica that it has not asked, and is refused once there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ramify.serving.gateway.admission.admission import Admission, Seeker
from ramify.serving.gateway.engines.replicas import Replica, Replicas
from ramify.serving.policy import placement
from ramify.serving.policy.placement import PowerOfK
from ramify.serving.policy.types import Finished, GroupView, Policy, Refusal, RequestId, RequestView, View


@dataclass(slots=True)
class _Dummies:
    """Of one call that waits."""

    at: set[int] = field(default_factory=set)  # replicas in whose queues it stands
    refused: dict[int, Refusal] = field(default_factory=dict)  # by those whose policy would not have it


class ReplicaQueues(Admission):
    """One policy for each replica, in their order. `k`: queues that a call stands in; None: in all. Raises ValueError
    where the policies are not as many as the replicas."""

    def __init__(
        self,
        policies: Sequence[Policy],
        replicas: Replicas,
        clock: Callable[[], float],
        took: Callable[[float], None] = lambda _: None,
        *,
        k: int | None = 2,
        seed: int = 0,
    ) -> None:
        if len(policies) != len(replicas.all):
            raise ValueError(f"{len(replicas.all)} replicas need as many policies, not {len(policies)}")
        super().__init__(replicas, clock, took)
        self._policies = tuple(policies)
        self._k = len(policies) if k is None else k
        self._power = PowerOfK(k, seed)
        self._dummies: dict[RequestId, _Dummies] = {}
        self._wakes: dict[int, float | None] = {}
        self._displaced: list[RequestId] = []  # by any policy, in this decision

    def observe(self, done: Finished) -> None:
        self._policies[done.view.replica].observe(done)

    def _perform(self, now: float) -> float | None:
        """Until no replica has room for a call that it would let in: one whose offer was not taken is asked again."""
        self._wakes, self._displaced = {}, []
        self._line_up(now)
        ask = {one.index for one in self._replicas.all}
        while ask:
            offers: dict[RequestId, list[Replica]] = {}
            for one in self._replicas.all:
                for id_ in self._let_in(one, now) if one.index in ask else ():
                    offers.setdefault(id_, []).append(one)
            ask = self._place(offers, now) | self._line_up(now)
        self._make_way()
        return min((at for at in self._wakes.values() if at is not None), default=None)

    def _line_up(self, now: float) -> set[int]:
        """Have each call that waits stand in K queues of those replicas that can do it, so far as there are so many;
        refuse whom no policy has left. Returns replicas with new dummies."""
        joined: set[int] = set()
        before, self._dummies = self._dummies, {}
        able: dict[frozenset[int], list[Replica]] = {}
        for id_, (call, turn) in list(self._waiting.items()):
            if turn.done():
                continue
            if call.avoid not in able:
                able[call.avoid] = self._replicas.able(now, call.avoid)
            mine = before.get(id_) or _Dummies()
            can = [one for one in able[call.avoid] if one.index not in mine.refused]
            if not can:
                self._drop(_mildest(mine.refused.values()))
                continue
            mine.at &= {one.index for one in can}
            new = self._drawn(call, [one for one in can if one.index not in mine.at], self._k - len(mine.at))
            mine.at |= new
            joined |= new
            self._dummies[id_] = mine
        return joined

    def _drawn(self, call: Seeker, among: Sequence[Replica], wanted: int) -> set[int]:
        """So many of them, and in any case the one where calls like it are best."""
        if self._replicas.home(call.affinity) in among:
            wanted = max(1, wanted)
        if wanted < 1 or not among:
            return set()
        dummies = self._power.dummies(_request(call), [self._seen(one, call) for one in among])
        return {dummy.replica for dummy in dummies[:wanted]}

    def _let_in(self, one: Replica, now: float) -> Sequence[RequestId]:
        """Whom this replica's policy lets in, so far as there is room by now: a slot that is being left calls for
        another decision when it is free."""
        waiting = [self._waiting[id_][0].view() for id_, mine in self._dummies.items() if one.index in mine.at]
        if not waiting:
            return ()
        inside = (call.view() for id_, call in self._inside.items() if id_ not in self._leaving)
        running = [call for call in inside if call.replica == one.index]
        verdict = self._ask(
            self._policies[one.index], View(one.capacity(self._leaving_at()[one.index]), waiting, running), now
        )
        self._wakes[one.index] = verdict.wake_at
        room = one.free if one.upstream is not None else 0
        admit = list(verdict.admit[:room])
        for refusal in verdict.drop:
            if one.running + len(admit) < one.slots and self._tested_at(refusal, (one,), now) is not None:
                admit.append(refusal.id)
            elif (mine := self._dummies.get(refusal.id)) is None:
                self._drop(refusal)
            else:
                mine.at.discard(one.index)
                mine.refused[one.index] = refusal
        self._displaced += verdict.preempt
        return admit

    def _make_way(self) -> None:
        """Have those leave whom a policy displaced, no more than there are calls without a place by now: one that
        stands in K queues is a reason to displace in each."""
        for id_ in self._displaced:
            if len(self._leaving) >= len(self._dummies):
                return
            self._interrupt((id_,))

    def _place(self, offers: dict[RequestId, list[Replica]], now: float) -> set[int]:
        """Each call in the best of its offers, its other dummies removed. Returns whose offers were not taken."""
        left: set[int] = set()
        for id_, offered in offers.items():
            call, turn = self._waiting[id_]
            if turn.done():
                continue
            chosen = self._replicas.home(call.affinity)
            if chosen is None or chosen not in offered:
                best = self._power.place([_request(call)], [self._seen(one, call) for one in offered])
                chosen = self._replicas.all[best[id_]]
            if call.affinity:
                self._replicas.remember(call.affinity, chosen)
            del self._dummies[id_]
            self._enter(id_, chosen, now)
            left |= {one.index for one in offered if one is not chosen}
        return left

    def _seen(self, one: Replica, call: Seeker) -> placement.Replica:
        """By the placement: with what it holds of the call's prompt."""
        holds = call.affinity is not None and self._replicas.home(call.affinity) is one
        prefixes = {call.affinity: call.view().prompt_tokens} if holds and call.affinity else {}
        return placement.Replica(one.index, one.capacity(), prefixes=prefixes)


def _request(call: Seeker) -> RequestView:
    """As the placement is asked: calls that are best on one replica are a group to it."""
    return replace(call.view(), group=None if call.affinity is None else GroupView(call.affinity, 1, 1))


def _mildest(refusals: Iterable[Refusal]) -> Refusal:
    """The one with the least deadline that would have done."""
    return min(refusals, key=lambda one: float("inf") if one.earliest_feasible_s is None else one.earliest_feasible_s)
