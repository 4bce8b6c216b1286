"""`StreamLending`: Concord for what has a deadline, Andes for streams, and slots that streams lend.

A reader who has enough to read for the next seconds needs no slot. So Concord decides over all slots but those that
streams need now, as if the others were empty. Andes then serves the streams with the other slots, and pauses the
streams whose readers are furthest ahead. A stream that is itself due by a time (its own deadline, or its workflow's)
is Concord's. Without streams the verdict is Concord's alone.

Memory is another matter: agents bring long contexts, and readers short ones. A call of Concord's that finds none free
waits behind the streams that start, and takes none from them, unless it is due soon or has waited for long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from ramify.serving.policy.concord.options import ConcordOptions
from ramify.serving.policy.concord.policy import Concord
from ramify.serving.policy.types import Finished, RequestId, RequestView, Verdict, View

if TYPE_CHECKING:
    from ramify.serving.policy.andes.policy import Andes

_GROWTH = 256  # tokens of KV kept free for the answer of a call with a deadline that starts
_SOON_S = 30.0  # a call that is due within so many seconds cannot wait for memory,
_LONG_S = 60.0  # nor one that has waited for so many
_PARTS = 8  # the slots kept for streams change in so many steps: Concord prices its jobs again at each change


@dataclass(frozen=True, slots=True)
class LendingOptions:
    lend_s: float = 1.0  # a reader with more than so many seconds to read lends its slot
    work_price: float = 4.0  # of preempting a stream: GPU time for its tokens counts so many times what serving gains
    stream_share: float = 0.25  # share of the slots that streams in need get at least; more if more of the calls are


class StreamLending:
    """The policy `concord` where there are streams."""

    def __init__(self, concord: ConcordOptions | None = None, options: LendingOptions | None = None) -> None:
        self.options = options or LendingOptions()
        self._concord = Concord(concord)
        self._andes: Andes | None = None

    def observe(self, done: Finished) -> None:
        self._concord.observe(done)

    def decide(self, view: View, now: float) -> Verdict:
        calls = (view.waiting, view.running, view.paused)
        if not any(any(call.reading is not None for call in some) for some in calls):
            return self._concord.decide(view, now)
        streams, due, capacity = _part(view, streams=True), _part(view, streams=False), view.capacity
        held = len(due.running)
        elsewhere = capacity.running - len(view.running)  # the host may not show all that runs
        slots = capacity.slots - self._slots_for_streams(streams, due, now)
        # A policy needs a slot to price by. If none is left, it gets one that is taken.
        mine = replace(capacity, slots=max(1, slots), running=held + elsewhere + (slots < 1))
        first = self._concord.decide(replace(due, capacity=mine), now)
        held += elsewhere + len(first.admit) + len(first.resume) - len(first.pause)
        held -= len(set(first.preempt) & {call.id for call in due.running})
        begin, kv_free = _beginning(due, first, now)
        slots = max(0, capacity.slots - held)
        mine = replace(capacity, slots=slots, running=len(streams.running), kv_free=kv_free)
        second = self._stream_policy().decide(replace(streams, capacity=mine), now)
        return _joined(first, second, begin)

    def _slots_for_streams(self, streams: View, due: View, now: float) -> int:
        """Return how many slots are kept for streams: whose readers have soon read all, and who cannot be paused."""
        slots, until = streams.capacity.slots, now + self.options.lend_s
        calls = [*streams.waiting, *streams.running, *streams.paused]
        needy = sum([call.reading is not None and call.reading.dry_at < until for call in calls])
        others = len(due.waiting) + len(due.running) + len(due.paused)
        share = max(self.options.stream_share, len(calls) / (len(calls) + others))
        part = max(1, slots // _PARTS)
        needed = min(needy, round(share * slots))
        return min(-(-max(needed, _unpausable(streams)) // part) * part, slots)

    def _stream_policy(self) -> Andes:
        if self._andes is None:
            # It needs numpy: not loaded without a stream.
            from ramify.serving.policy.andes.policy import Andes, AndesOptions

            self._andes = Andes(AndesOptions(work_price=self.options.work_price))
        return self._andes


def _part(view: View, *, streams: bool) -> View:
    """Return the view of the streams alone, or of the others."""

    def only(calls: Iterable[RequestView]) -> list[RequestView]:
        return [call for call in calls if _is_stream(call) is streams]

    return View(view.capacity, only(view.waiting), only(view.running), only(view.paused))


def _is_stream(call: RequestView) -> bool:
    return call.reading is not None and call.deadline is None


def _unpausable(streams: View) -> int:
    """Return how many running streams cannot stand aside: only a pause is free, and the engine has so much room."""
    capacity, running = streams.capacity, len(streams.running)
    if not capacity.can_pause:
        return running
    return 0 if capacity.pause_room is None else max(0, running - capacity.pause_room)


def _beginning(due: View, first: Verdict, now: float) -> tuple[tuple[RequestId, ...], int | None]:
    """Return which admitted calls of Concord's begin before streams do, and the KV that is free for streams then."""
    kv_free = due.capacity.kv_free
    if kv_free is None:
        return first.admit, None
    gone = set(first.preempt)
    kv_free += sum([call.computed for call in (*due.running, *due.paused) if call.id in gone])
    calls, begin = {call.id: call for call in due.waiting}, list[RequestId]()
    for id_ in first.admit:
        needed = calls[id_].to_prefill + _GROWTH
        if needed <= kv_free or _cannot_wait(calls[id_], now):
            kv_free -= needed
            begin.append(id_)
    return tuple(begin), kv_free


def _cannot_wait(call: RequestView, now: float) -> bool:
    limits = (call.deadline, call.ttft, call.admit_by, None if call.compound is None else call.compound.due)
    due = min([limit for limit in limits if limit is not None], default=inf)
    return due < now + _SOON_S or call.arrived < now - _LONG_S


def _joined(first: Verdict, second: Verdict, begin: tuple[RequestId, ...]) -> Verdict:
    early = set(begin)
    admit = begin + second.admit + tuple([id_ for id_ in first.admit if id_ not in early])
    rest = first.order[len(first.admit) :] + second.order[len(second.admit) :]
    wakes = [at for at in (first.wake_at, second.wake_at) if at is not None]
    return Verdict(
        admit=admit,
        order=admit + rest,
        preempt=second.preempt + first.preempt,
        pause=second.pause + first.pause,
        resume=first.resume + second.resume,
        drop=first.drop,
        budget=first.budget,
        wake_at=min(wakes, default=None),
    )
