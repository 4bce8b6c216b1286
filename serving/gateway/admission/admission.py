"""The door to the engines: as many calls inside as they have slots, the rest waiting in the policy's order.

The gateway's host of a Policy: here of one for all replicas, in queues.py of one for each. It decides anew when
calls have come or gone, once for all of a turn of the event loop, or when its time is up, and performs the verdict:
refuse, interrupt, let in. To pause a call, or to see KV, is not in a gateway's power, and it says so.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from ramify.serving.gateway.engines.replicas import Replica, Replicas
from ramify.serving.policy.types import Finished, Policy, Refusal, RequestId, RequestView, Verdict, View


class Refused(Exception):
    """The policy will not start this call, or not go on with it."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.reason)


class Preempted(Exception):
    """The policy gives this call's slot to another; it waits again."""


class Seeker(Protocol):
    """A call, as the door knows it."""

    affinity: str | None  # calls with the same one are best on one replica
    cached_as: str | None  # an engine that answered one with the same may have read its prompt already
    avoid: frozenset[int]  # replicas that have failed it
    resumable: bool  # its answer, broken off, can be gone on with

    def view(self) -> RequestView: ...

    def enter(self, now: float, replica: int) -> None:
        """It has a slot from now on; its view says that it runs."""

    def leave(self, now: float) -> None:
        """It has none any more."""

    def interrupt(self, why: Exception) -> None:
        """Make it leave its slot. `why`: Refused or Preempted."""


class Admission(ABC):
    """Who waits, who is inside, and when to decide. `took` is told the seconds of each verdict."""

    def __init__(
        self,
        replicas: Replicas,
        clock: Callable[[], float],
        took: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._took = took
        self._waiting: dict[RequestId, tuple[Seeker, asyncio.Future[Replica]]] = {}
        self._inside: dict[RequestId, Seeker] = {}
        self._leaving: set[RequestId] = set()  # interrupted, not yet gone
        self._timer: asyncio.TimerHandle | None = None
        self._due: asyncio.Handle | None = None

    @property
    def running(self) -> int:
        return len(self._inside)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def slot(self, call: Seeker) -> AsyncIterator[Replica]:
        """Wait for a slot of some replica, hold it. Raises Refused."""
        id_ = call.view().id
        turn: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        self._waiting[id_] = (call, turn)
        try:
            self._decide_soon()
            yield await turn
        finally:
            self._waiting.pop(id_, None)
            self._leaving.discard(id_)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                now = self._clock()
                turn.result().leave(id_, now)
                del self._inside[id_]
                call.leave(now)
            self._decide_soon()

    @abstractmethod
    def observe(self, done: Finished) -> None:
        """A call has ended: policies learn from it."""

    @abstractmethod
    def _perform(self, now: float) -> float | None:
        """Ask for verdicts over those that wait, at least one, and perform them. When they want to be asked again."""

    def _decide_soon(self) -> None:
        """In the next turn of the loop. A verdict looks at every call, so that one a call would be quadratic: two
        thousand that come together took the loop ten seconds, and its connections to engines their timeouts."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._decide_or_fail)

    def _decide_or_fail(self) -> None:
        """From the loop, where nobody would hear of a policy's bug: those that wait for its verdict do."""
        try:
            self.decide()
        except Exception as error:
            for _, turn in self._waiting.values():
                if not turn.done():
                    turn.set_exception(error)
            raise

    def decide(self) -> None:
        """Refuse, interrupt and let in as the policy says."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if not self._waiting:
            self._wake(None)
            return
        now = self._clock()
        wakes = (self._perform(now), self._replicas.wakes_at(now) if self._waiting else None)
        self._wake(min((at for at in wakes if at is not None), default=None))

    def _ask(self, policy: Policy, view: View, now: float) -> Verdict:
        begun = time.perf_counter()
        verdict = policy.decide(view, now)
        self._took(time.perf_counter() - begun)
        return verdict

    def _leaving_at(self) -> Counter[int]:
        """How many have been interrupted and not yet left, by replica. Their slots are as good as free: a policy that
        is asked again before they are would take another call's for the same one that waits."""
        return Counter(self._inside[id_].view().replica for id_ in self._leaving)

    def _tested_at(self, refusal: Refusal, among: Sequence[Replica], now: float) -> Replica | None:
        """Where a call is let in although the policy refuses it, since the estimate behind the refusal is in doubt:
        refusals alone would never correct it. None where the refusal stands."""
        if refusal.needs is None or refusal.id not in self._waiting:
            return None
        call, turn = self._waiting[refusal.id]
        if turn.done():
            return None
        able = [one for one in among if one.upstream is not None and one.index not in call.avoid]
        return next((one for one in able if one.may_do(call.view(), call.cached_as, refusal.needs, now)), None)

    def _drop(self, refusal: Refusal) -> None:
        if refusal.id in self._waiting:
            _, turn = self._waiting.pop(refusal.id)
            if not turn.done():
                turn.set_exception(Refused(refusal))
        elif refusal.id in self._inside and refusal.id not in self._leaving:
            self._leaving.add(refusal.id)
            self._inside[refusal.id].interrupt(Refused(refusal))

    def _interrupt(self, ids: Sequence[RequestId]) -> None:
        """Those that can be gone on with leave their slots; it is free once their request is closed."""
        for id_ in ids:
            call = self._inside.get(id_)
            if call is not None and call.resumable and id_ not in self._leaving:
                self._leaving.add(id_)
                call.interrupt(Preempted())

    def _enter(self, id_: RequestId, replica: Replica, now: float) -> None:
        call, turn = self._waiting.pop(id_)
        self._inside[id_] = call
        replica.enter(id_, now)
        call.enter(now, replica.index)
        turn.set_result(replica)

    def _wake(self, at: float | None) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._decide_or_fail)


class OneQueue(Admission):
    """One policy before all replicas, which are one engine to it; a call is bound to one when it is let in."""

    def __init__(
        self,
        policy: Policy,
        replicas: Replicas,
        clock: Callable[[], float],
        took: Callable[[float], None] = lambda _: None,
    ) -> None:
        super().__init__(replicas, clock, took)
        self._policy = policy

    def observe(self, done: Finished) -> None:
        self._policy.observe(done)

    def _perform(self, now: float) -> float | None:
        waiting = [call.view() for call, _ in self._waiting.values()]
        running = [call.view() for id_, call in self._inside.items() if id_ not in self._leaving]
        capacity = self._replicas.capacity(now, leaving=self._leaving_at())
        verdict = self._ask(self._policy, View(capacity, waiting, running), now)
        self._interrupt(verdict.preempt)
        self._admit(verdict, now)
        for refusal in verdict.drop:
            if (test := self._tested_at(refusal, self._replicas.usable(now), now)) is not None:
                self._enter(refusal.id, test, now)
            else:
                self._drop(refusal)
        return verdict.wake_at

    def _admit(self, verdict: Verdict, now: float) -> None:
        """Into slots that are free by now: those that are being left call for another decision when they are. Who
        would rather wait for a replica that is away leaves its turn to the next."""
        left = len(verdict.admit)
        for id_ in (*verdict.admit, *verdict.order):
            if not left:
                return
            if id_ not in self._waiting:
                continue
            call, turn = self._waiting[id_]
            if turn.done():
                continue
            replica = self._replicas.place(call.view(), now, call.affinity, call.avoid)
            if replica is None:
                if not self._replicas.room(now):
                    return
                continue
            left -= 1
            self._enter(id_, replica, now)
