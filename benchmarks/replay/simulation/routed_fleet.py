"""`RoutedFleet`: several engines, with the gateway's own power of K before them (`ReplicaQueues`).

Each engine has a policy of its own, and a call stands in the queues of K of them, as with `ramify serve --placement
power-of-k`. The queues, the draws, the offers and the refusals are those of the gateway; only its event loop is
replaced by the replay's clock. Engines are equally fast and known, so no refusal is tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import cast

from benchmarks.replay.inputs.client_tags import LengthHints
from benchmarks.replay.simulation.fleet import Fleet, WaitingCall
from benchmarks.replay.simulation.outcomes import CallInFlight, ProgramRun
from benchmarks.replay.types import Contender, Program, Setting, Stock
from ramify.serving.gateway.admission.replica_queues import ReplicaQueues
from ramify.serving.gateway.engines.replicas import Replica, Replicas
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.policy.types import Capacity, Finished, Policy, Refusal, RequestId, RequestView, StepModel

_UP = cast(Upstream, object())  # the router only asks whether a replica has an engine


class _SimulatedReplica(Replica):
    """A replica whose speed is known. It can neither preempt nor cancel, as in a replay with one queue."""

    def __init__(self, index: int, slots: int, step: StepModel) -> None:
        super().__init__(index, slots, _UP)
        self._step = step

    def capacity(self, leaving: int = 0) -> Capacity:
        return Capacity(self.slots, self.running - leaving, None, self._step)


@dataclass(slots=True)
class _RoutedCall:
    """A call, as admission sees it."""

    seen: Callable[[], RequestView]  # its view, without its replica
    bind: Callable[[float, int], None]  # to a replica, at a time
    affinity: str | None
    cached_as: str | None = None
    avoid: frozenset[int] = frozenset()
    resumable: bool = False
    replica: int = 0
    last: tuple[RequestView, RequestView] | None = None

    def view(self) -> RequestView:
        """The same object while nothing has changed: policies keep what they computed for it."""
        seen = self.seen()
        if self.last is None or self.last[0] is not seen:
            self.last = seen, seen if seen.replica == self.replica else replace(seen, replica=self.replica)
        return self.last[1]

    def enter(self, now: float, replica: int) -> None:
        self.replica = replica
        self.bind(now, replica)

    def leave(self, now: float) -> None:
        pass

    def interrupt(self, why: Exception) -> None:
        raise AssertionError(f"a call was interrupted that cannot be resumed: {why}")


class _Router(ReplicaQueues):
    """The gateway's queues on a clock that is told. After `decide`, `refused` are the calls that no queue is left
    for."""

    def __init__(self, policies: Sequence[Policy], setting: Setting, k: int) -> None:
        self.now, self.wake_at = 0.0, inf
        self.refused: list[Refusal] = []
        self._loop = asyncio.new_event_loop()  # makes futures, and never runs
        self._loop.close()
        made = [_SimulatedReplica(i, setting.slots, setting.step) for i in range(setting.replicas)]
        super().__init__(policies, Replicas(made), lambda: self.now, k=k)

    def join(self, id_: RequestId, call: _RoutedCall) -> None:
        self._waiting[id_] = (call, self._loop.create_future())

    def left(self, id_: RequestId, now: float) -> None:
        """A call has ended, or its program was given up."""
        self._waiting.pop(id_, None)
        if (call := self._inside.pop(id_, None)) is not None:
            self._replicas.all[call.view().replica].leave(id_, now)

    def _drop(self, refusal: Refusal) -> None:
        """A running call is not refused, as in a replay with one queue."""
        if self._waiting.pop(refusal.id, None) is not None:
            self.refused.append(refusal)

    def _tested_at(self, refusal: Refusal, among: Sequence[Replica], now: float) -> Replica | None:
        return None

    def _wake(self, at: float | None) -> None:
        self.wake_at = inf if at is None else at


class RoutedFleet(Fleet):
    """Engines behind queues of their own."""

    def __init__(
        self,
        programs: Sequence[Program],
        contender: Contender,
        setting: Setting,
        told: LengthHints,
        folder: Path,
        fast: bool,
        cache: bool,
    ) -> None:
        super().__init__(programs, contender, setting, told, folder, fast, cache)
        if isinstance(contender.engine, Stock) or contender.placement_k is None:
            raise TypeError(f"{contender.name} has no policy for each of several engines")
        policies = [contender.engine() for _ in range(setting.replicas)]
        self._router = _Router(policies, setting, contender.placement_k)

    def _join(self, id_: RequestId, asked: WaitingCall, affinity: str | None) -> None:
        def seen() -> RequestView:
            return self._view_of(asked, inside=id_ in self._queue.inside)

        def bind(now: float, replica: int) -> None:
            self._bind_at(self._queue.waiting.pop(id_), id_, replica, now)

        self._router.join(id_, _RoutedCall(seen, bind, affinity))

    def _learn(self, done: Finished, replica: int) -> None:
        self._router.observe(replace(done, view=replace(done.view, replica=replica)))

    def _decide(self, now: float) -> None:
        """Let the queues decide; again while calls are refused, since their siblings leave slots behind."""
        router = self._router
        router.now, refused = now, True
        while refused:
            router.decide()
            drops, router.refused = router.refused, []
            refused = self._refuse(drops)
        self._wake_at = router.wake_at

    def _close(self, flight: CallInFlight, course: ProgramRun, ended: float | None, refused: str | None) -> None:
        self._router.left(self._queue.ids[flight.name], self._router.now)
        super()._close(flight, course, ended, refused)
