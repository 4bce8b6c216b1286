"""`Ordered`: a queue sorted by one number. FCFS, static classes, EDF, least laxity, SRPT and learning-to-rank share
it.

Each of them is a key, and for some a time from which a call is not worth starting. Two switches cover the rest of
the literature: whether a waiting call displaces a running one that comes after it (preemptive EDF, SRPT), and by
how much it must come before. docs/decisions/065 says what was varied. Keys and times that several baselines use are
below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from ramify.serving.policy.cost_model import LengthPrior, pace_s, prefill_s, remaining, rest_wall_s
from ramify.serving.policy.types import Capacity, Finished, Refusal, RequestId, RequestView, State, Verdict, View

_DRIFT = 1.1  # keys are kept while the pace is within this factor of the one that they were computed with
_ANSWER = 512  # tokens of KV kept for the answer of a call that starts beside a paused one
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Scene:
    """What a key may read beside the call. The time is not in it, so a key holds until its call moves on."""

    capacity: Capacity
    token_s: float  # from one token to the next, in a full batch
    prior: LengthPrior = field(default_factory=LengthPrior)


Key = Callable[[RequestView, Scene], float]  # the smaller, the sooner a call is served
LateAt = Callable[[RequestView, Scene], float]  # from this time on a call is refused; NEVER: it is not


def never(call: RequestView, scene: Scene) -> float:
    """Refuse nothing."""
    return NEVER


class _Known(NamedTuple):
    view: RequestView
    key: float
    late_at: float
    rank: tuple[float, float, int]


_RANK = attrgetter("rank")


class Ordered:
    """Serves by `key`, ties by arrival, and refuses from `late_at` on a call that has not begun to answer.

    `displace`: a waiting call takes the slot of the running one with the largest key, if that key is larger by more
    than this share of itself; None: no running call is stopped. The victim is paused if there is room, else
    preempted.
    """

    def __init__(self, key: Key, late_at: LateAt = never, displace: float | None = None) -> None:
        self._key, self._late_at, self._displace = key, late_at, displace
        self._prior = LengthPrior()
        self._scene: Scene | None = None
        self._known: dict[RequestId, _Known] = {}

    def observe(self, done: Finished) -> None:
        self._prior.learn(done)

    def forget(self, ids: Iterable[RequestId]) -> None:
        """Forget the keys of calls whose keys have changed although their views have not."""
        for id_ in ids:
            self._known.pop(id_, None)

    def decide(self, view: View, now: float) -> Verdict:
        scene = self._at(view)
        kept = self._known.get
        queue = [
            known if (known := kept(call.id)) is not None and known.view is call else self._of(call, scene)
            for call in view.waiting
        ]
        drop = [one for one in queue if one.late_at <= now and not one.view.generated]
        if drop:
            gone = {one.view.id for one in drop}
            queue = [one for one in queue if one.view.id not in gone]
        queue += [self._of(call, scene) for call in view.paused]
        queue.sort(key=_RANK)
        chosen = queue[: view.capacity.free]
        running = [self._of(call, scene) for call in view.running]
        starters, pause, preempt = self._displaced(queue[len(chosen) :], running, view.capacity)
        self._known = {one.view.id: one for one in [*queue, *running]}
        chosen += starters
        placed = {one.view.id for one in chosen}
        rest = [one for one in queue if one.view.id not in placed and one.view.state is not State.PAUSED]
        admit = tuple([one.view.id for one in chosen if one.view.state is not State.PAUSED])
        return Verdict(
            admit=admit,
            order=(*admit, *[one.view.id for one in rest]),
            preempt=tuple(preempt),
            pause=tuple(pause),
            resume=tuple([one.view.id for one in chosen if one.view.state is State.PAUSED]),
            drop=tuple([Refusal(one.view.id, f"late since {now - one.late_at:.3f} s") for one in drop]),
            wake_at=min(
                [one.late_at for one in queue if now < one.late_at < NEVER and not one.view.generated], default=None
            ),
        )

    def _at(self, view: View) -> Scene:
        """Return the scene for keys. If the engine's pace has changed it is a new one, and no key is kept."""
        token_s, scene = pace_s(view.capacity, view.running), self._scene
        if (
            scene is None
            or scene.capacity.slots != view.capacity.slots
            or not scene.token_s / _DRIFT <= token_s <= scene.token_s * _DRIFT
        ):
            self._known = {}
            scene = self._scene = Scene(view.capacity, token_s, self._prior)
        return scene

    def _of(self, call: RequestView, scene: Scene) -> _Known:
        known = self._known.get(call.id)
        if known is None or known.view is not call:
            key = self._key(call, scene)
            known = self._known[call.id] = _Known(call, key, self._late_at(call, scene), (key, call.arrived, call.id))
        return known

    def _displaced(
        self, queue: Sequence[_Known], running: Sequence[_Known], capacity: Capacity
    ) -> tuple[list[_Known], list[RequestId], list[RequestId]]:
        """Return the calls that start, and those paused or preempted for them: the queue's first against the last
        running.
        """
        starters: list[_Known] = []
        pause: list[RequestId] = []
        preempt: list[RequestId] = []
        if self._displace is None or not (capacity.can_pause or capacity.can_preempt):
            return starters, pause, preempt
        kv_free = capacity.kv_free
        for one, worst in zip(queue, sorted(running, key=_RANK, reverse=True), strict=False):
            if worst.key - one.key <= self._displace * abs(worst.key):
                break
            needed = 0 if one.view.state is State.PAUSED else one.view.to_prefill + _ANSWER
            if capacity.can_pause and (kv_free is None or kv_free >= needed):
                pause.append(worst.view.id)
                kv_free = None if kv_free is None else kv_free - needed
            elif capacity.can_preempt:
                preempt.append(worst.view.id)
            else:
                break
            starters.append(one)
        return starters, pause, preempt


BEST_EFFORT_S = 120.0


def due(call: RequestView) -> float:
    """Return when a call is due: its first token if it streams, else its whole answer, or its whole workflow.

    Best effort is due `BEST_EFFORT_S` after its arrival.
    """
    times = [
        call.ttft if call.generated == 0 else None,
        call.deadline,
        None if call.compound is None else call.compound.deadline,
    ]
    known = [at for at in times if at is not None]
    if known:
        return min(known)
    if call.tbt is not None and call.ttft is not None:  # it streams: when its next token is due
        return call.ttft + call.generated * call.tbt
    return call.arrived + BEST_EFFORT_S


def wall_s(call: RequestView, scene: Scene, quantile: float) -> float:
    """Return the seconds in a slot until what is due then is there.

    This is the prefill, and if the call is due as a whole, the answer and the later stages.
    """
    prefill = prefill_s(scene.capacity.step, call.to_prefill)
    if call.ttft is not None and call.generated == 0:
        return prefill + scene.token_s
    own = remaining(call, scene.prior, quantile) * scene.token_s
    return prefill + own + rest_wall_s(call, scene.capacity, scene.token_s)


def late_at(call: RequestView, scene: Scene, quantile: float = 0.1) -> float:
    """Return from when a call cannot be in time, even with an answer of this quantile. Best effort: never."""
    if call.ttft is None and call.deadline is None and (call.compound is None or call.compound.deadline is None):
        return NEVER
    return due(call) - wall_s(call, scene, quantile)


def waited_out(call: RequestView, scene: Scene, waiting_s: float = 5.0) -> float:
    """Return when a call that was not admitted is dropped (`waiting_time` in chapter 5 of the thesis). Best effort:
    never.
    """
    return NEVER if late_at(call, scene) == NEVER else call.arrived + waiting_s
