"""The door to the engine: at most `slots` calls inside, the rest waiting in the policy's order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ramify.serving.policy.types import AdmissionPolicy, Capacity, PendingView, Refusal, RequestId


class Refused(Exception):
    """The policy will not start this call."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.reason)


class Admission:
    """Performs an AdmissionPolicy's verdicts: decides anew whenever a call comes, goes, or its time is up."""

    def __init__(self, policy: AdmissionPolicy, slots: int, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._slots = slots
        self._clock = clock
        self._running = 0
        self._waiting: dict[RequestId, tuple[PendingView, asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def slot(self, call: PendingView) -> AsyncIterator[None]:
        """Wait for a slot, hold it. Raises Refused."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = (call, turn)
        try:
            self._decide()
            await turn
            yield
        finally:
            self._waiting.pop(call.id, None)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._running -= 1
            self._decide()

    def _decide(self) -> None:
        """Let in and refuse as the policy says."""
        now = self._clock()
        pending = tuple(view for view, _ in self._waiting.values())
        capacity = Capacity(self._slots, self._running)
        verdict = self._policy.decide(pending, capacity, now)
        for refusal in verdict.refuse:
            _, turn = self._waiting.pop(refusal.id)
            if not turn.done():
                turn.set_exception(Refused(refusal))
        for id_ in verdict.admit[: capacity.free]:
            _, turn = self._waiting.pop(id_)
            if not turn.done():
                turn.set_result(None)
                self._running += 1
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if verdict.wake_at is not None and self._waiting:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, verdict.wake_at - now), self._decide)
