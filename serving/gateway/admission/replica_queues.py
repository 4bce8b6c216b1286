"""A queue in front of each replica, and a dummy of each call in K of them: power of K, as in the thesis (§4.3).

Each replica has a policy of its own, which sees only the calls in its queue and those that run there. The first
policies that admit a call have its dummies; the best of these replicas takes it, and the other dummies are removed. A
replica that is gone gives its dummies back, and their calls enter other queues. A call that one policy refuses enters
the queue of a replica that it has not asked; it is refused once there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ramify.serving.gateway.admission.admission import Admission, WaitingCall
from ramify.serving.gateway.engines.replicas import Replica, Replicas
from ramify.serving.policy import placement
from ramify.serving.policy.placement import PowerOfK
from ramify.serving.policy.types import Finished, GroupView, Policy, Refusal, RequestId, RequestView, View


@dataclass(slots=True)
class _Dummies:
    """The dummies of one waiting call."""

    at: set[int] = field(default_factory=set)  # replicas in whose queues it stands
    refused: dict[int, Refusal] = field(default_factory=dict)  # by replica, if its policy refused it


class ReplicaQueues(Admission):
    """One policy for each replica, in their order. `k`: queues that a call stands in; None: all of them.

    Raises ValueError unless there are as many policies as replicas.
    """

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
            raise ValueError(f"{len(replicas.all)} replicas need one policy each, not {len(policies)}")
        super().__init__(replicas, clock, took)
        self._policies = tuple(policies)
        self._k = len(policies) if k is None else k
        self._power = PowerOfK(k, seed)
        self._dummies: dict[RequestId, _Dummies] = {}
        self._wakes: dict[int, float | None] = {}
        self._displaced: list[RequestId] = []  # by any policy, in the present decision

    def observe(self, done: Finished) -> None:
        self._policies[done.view.replica].observe(done)

    def _perform(self, now: float) -> float | None:
        """Repeat until no replica has room for a call that it would admit; one whose offer was not taken is asked
        again."""
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
        """Put each waiting call into K queues of replicas that can do it, or as many as there are, and refuse calls
        that no policy is left for. Returns the replicas with new dummies."""
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

    def _drawn(self, call: WaitingCall, among: Sequence[Replica], wanted: int) -> set[int]:
        """So many replicas drawn for a call, always including the one that suits it best."""
        if self._replicas.home(call.affinity) in among:
            wanted = max(1, wanted)
        if wanted < 1 or not among:
            return set()
        dummies = self._power.dummies(_request(call), [self._seen(one, call) for one in among])
        return {dummy.replica for dummy in dummies[:wanted]}

    def _let_in(self, one: Replica, now: float) -> Sequence[RequestId]:
        """The calls that this replica's policy admits, as far as it has room now. Slots that are being left lead to
        another decision once they are free."""
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
        """Interrupt displaced calls, but no more than there are calls without a place: a call that stands in K queues
        is a reason to displace in each of them."""
        for id_ in self._displaced:
            if len(self._leaving) >= len(self._dummies):
                return
            self._interrupt((id_,))

    def _place(self, offers: dict[RequestId, list[Replica]], now: float) -> set[int]:
        """Put each call into the best of its offers and remove its other dummies. Returns the replicas not chosen."""
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

    def _seen(self, one: Replica, call: WaitingCall) -> placement.Replica:
        """The replica as placement sees it, with what it holds of the call's prompt."""
        holds = call.affinity is not None and self._replicas.home(call.affinity) is one
        prefixes = {call.affinity: call.view().prompt_tokens} if holds and call.affinity else {}
        return placement.Replica(one.index, one.capacity(), prefixes=prefixes)


def _request(call: WaitingCall) -> RequestView:
    """The call as placement sees it: calls that belong on one replica count as a group."""
    return replace(call.view(), group=None if call.affinity is None else GroupView(call.affinity, 1, 1))


def _mildest(refusals: Iterable[Refusal]) -> Refusal:
    """The refusal with the least deadline that would have been feasible."""
    return min(refusals, key=lambda one: float("inf") if one.earliest_feasible_s is None else one.earliest_feasible_s)
