"""Admission: as many calls in the engines as they have slots; the rest wait in the policy's order.

`OneQueue` asks one policy for all replicas; `replica_queues` asks one for each. Admission decides again when calls
have come or gone (once for each turn of the event loop) or when the policy's wake-up time has come, and performs the
verdict: refuse, interrupt, admit. A gateway can neither pause a call nor see the KV cache, and tells the policy so.
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
from ramify.serving.gateway.errors import Preempted, Refused
from ramify.serving.policy.types import Finished, Policy, Refusal, RequestId, RequestView, Verdict, View


class WaitingCall(Protocol):
    """A call, as admission sees it."""

    affinity: str | None  # calls with the same value run best on one replica
    cached_as: str | None  # an engine that answered a call with the same value may have cached its prompt
    avoid: frozenset[int]  # replicas that have failed this call
    resumable: bool  # its answer can be continued after an interruption

    def view(self) -> RequestView: ...

    def enter(self, now: float, replica: int) -> None:
        """It holds a slot from now on; its view says that it runs."""

    def leave(self, now: float) -> None:
        """It holds no slot any more."""

    def interrupt(self, why: Exception) -> None:
        """Make it leave its slot. `why`: a Refused or a Preempted."""


class Admission(ABC):
    """Which calls wait, which run, and when to decide. `took` gets the duration of each verdict in seconds."""

    def __init__(
        self,
        replicas: Replicas,
        clock: Callable[[], float],
        took: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._took = took
        self._waiting: dict[RequestId, tuple[WaitingCall, asyncio.Future[Replica]]] = {}
        self._inside: dict[RequestId, WaitingCall] = {}
        self._leaving: set[RequestId] = set()  # interrupted, but still in their slots
        self._timer: asyncio.TimerHandle | None = None
        self._due: asyncio.Handle | None = None
        # called after a decision that leaves calls without a slot
        self.left_waiting: Callable[[], None] = lambda: None

    @property
    def running(self) -> int:
        return len(self._inside)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def slot(self, call: WaitingCall) -> AsyncIterator[Replica]:
        """Wait for a slot of any replica and hold it. Raises Refused."""
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
        """Tell the policies about a call that has ended, so that they learn from it."""

    @abstractmethod
    def _perform(self, now: float) -> float | None:
        """Ask the policies about the waiting calls, of which there is at least one, and perform their verdicts.

        Returns the time at which they want to be asked again.
        """

    def _decide_soon(self) -> None:
        """Decide in the next turn of the event loop. A verdict looks at every call, so deciding for each arrival
        would be quadratic: 2,000 calls at once took ten seconds of the loop, in which connections to engines timed
        out."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._decide_or_fail)

    def _decide_or_fail(self) -> None:
        """Decide. The event loop would swallow a policy's exception, so the waiting calls get it as well."""
        try:
            self.decide()
        except Exception as error:
            for _, turn in self._waiting.values():
                if not turn.done():
                    turn.set_exception(error)
            raise

    def decide(self) -> None:
        """Refuse, interrupt and admit as the policy says."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if not self._waiting:
            self._wake(None)
            return
        now = self._clock()
        wakes = (self._perform(now), self._replicas.wakes_at(now) if self._waiting else None)
        self._wake(min((at for at in wakes if at is not None), default=None))
        if self._waiting:
            self.left_waiting()

    def _ask(self, policy: Policy, view: View, now: float) -> Verdict:
        begun = time.perf_counter()
        verdict = policy.decide(view, now)
        self._took(time.perf_counter() - begun)
        return verdict

    def _leaving_at(self) -> Counter[int]:
        """By replica, how many interrupted calls still hold their slots. These slots count as free: otherwise a
        policy that is asked again too early would interrupt another call for the same waiting one."""
        return Counter(self._inside[id_].view().replica for id_ in self._leaving)

    def _tested_at(self, refusal: Refusal, among: Sequence[Replica], now: float) -> Replica | None:
        """The replica that admits a call although the policy refuses it, as a test of the estimate behind the
        refusal: refusals alone would never correct that estimate. None where the refusal stands."""
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
        """Interrupt those of these calls that can be resumed. A slot is free once its request is closed."""
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
    """One policy and one queue in front of all replicas, which look like one engine to it. A call is bound to a
    replica when it is admitted."""

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
        """Admit calls into slots that are free now; slots that are being left lead to another decision once they are
        free. A call that prefers a replica which is away gives its turn to the next call."""
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
