"""The order in which a workflow gets the results of its operations: the order of the journal's rows, one at a time.

What a workflow with several tasks does may depend on which result comes first. So the first process of a run and
every later one hand out results in the same order. A result waits until

- every recorded result with a lower number was handed out, and
- nothing that the result before it set going is ready to run, so the calls that follow from that result were made.

A call has a place, too, if other results were handed out between it and its own result: those wait until the workflow
has made it. A timer of the workflow may have made it early. So have effects and questions without a result.

Recorded results that the workflow does not ask for any more, because its code was changed, would stop the others for
ever. They are left out when nothing else can go on for as long as the recorded run took to come to that call, and no
timer of the workflow, such as the timeout of `asyncio.wait`, may lead to it.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType

from ramify.runtime.journal.timer_pace import TimerPace
from ramify.runtime.user_code.scope import is_in_step, run_of

_MOST_AT_ONCE = 32  # results that are handed out without a turn of the event loop
_MOST_TICKS = 50  # of the event loop, if other tasks of the process keep it busy or it does not tell what is ready
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.05, 5.0
_SLACK, _LEAST_S = 1.5, 2.0
"""A call that a process made N seconds after its beginning, perhaps because of a timer, is waited for until a later
process is _SLACK * N + _LEAST_S seconds old."""
_SILENT_S = 5.0  # after how long observers are told of that
_LOOK_S = 0.1  # between two looks for whether a timer that holds a result back still runs


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded result: its key, the number of its row, and when its call began and ended, in Unix seconds.

    age_s: its process was not older when the call began. 0: it is not waited for that long.
    called_after: the number of the last result that was handed out before the call. None: that before its own.
    only_begun: there is no result; the number is that of the result before it. An irreversible effect, or a question.
    is_effect: what the workflow does without it could do the same again.
    cancelled: the workflow cancelled the call when it ended.
    what: the operation, for observers.
    """

    key: str
    seq: int
    started_at: float
    ended_at: float
    age_s: float = 0.0
    called_after: int | None = None
    only_begun: bool = False
    is_effect: bool = False
    what: str = ""
    cancelled: bool = False


@dataclass(eq=False, slots=True)
class _Place:
    """The place of one result, or of a stage of model calls, in the order."""

    unnumbered: set[str]
    spare: int = 0  # so many of them need no number
    seq: int | None = None  # None: not known yet
    patience_s: float = 0.0
    before: Recorded | None = None  # what earlier processes recorded
    call: _Place | None = None  # the place of the call, before that of the result
    result: _Place | None = None  # the reverse
    asked: bool = False  # the workflow has called the operation in this process
    asked_at: float = 0.0  # when, by the loop's clock
    over: bool = False  # handed out, given up or left out
    turn: asyncio.Future[None] | None = None  # the operation has its result and waits for its turn
    hasty: Callable[[str], bool] | None = None  # for these effects it waits only as long as for a result


class Turns:
    """Hands out results in the order of their rows.

    recorded: the results that a replay is expected to ask for.
    returned: is called in the task that gets a result, right before it continues.
    since: when the run was created, in Unix seconds. resumed: when earlier processes resumed it.
    notice: tells observers that a call is waited for, and for how long.
    """

    def __init__(
        self,
        recorded: Iterable[Recorded],
        returned: Callable[[], None] = lambda: None,
        *,
        since: float | None = None,
        resumed: Iterable[float] = (),
        notice: Callable[[str], None] = lambda said: None,
    ) -> None:
        self.returned = returned
        self.left_out: list[str] = []
        """Keys of recorded effects that the workflow did not ask for, and that are not waited for any more."""
        self._begun = time.monotonic()
        self._notice, self._noticed = notice, set[str]()
        self._recorded: dict[str, _Place] = {}
        self._active: dict[str, _Place] = {}
        self._order: list[tuple[int, int, _Place]] = []  # a heap
        self._pushed = 0
        self._newest = 0  # the greatest number of a row so far
        self._waiting: set[_Place] = set()
        self._next: asyncio.Handle | None = None
        self._patience: tuple[_Place, asyncio.TimerHandle] | None = None
        self._ticks = self._at_once = 0
        self._run: object | None = None  # whose results these are
        self.handed_out = 0
        """The greatest number of a result that was handed out so far."""
        # recorded effects; those that the workflow has reached are left out now and then
        self._effects: list[_Place] = []
        before, in_order = since, sorted(recorded, key=lambda one: one.seq)
        self._held: asyncio.TimerHandle | None = None
        self._pace = TimerPace(in_order, before or 0.0, self._begun, resumed)
        for one in in_order:
            gap = 0.0 if before is None else one.started_at - before
            patience = min(max(_LEAST_PATIENCE_S, 1.5 * gap), _MOST_PATIENCE_S)
            place = self._recorded[one.key] = _Place(set(), seq=one.seq, patience_s=patience, before=one)
            if one.called_after is not None:
                place.call = _Place(set(), seq=one.called_after, patience_s=patience, before=one, result=place)
                self._push(place.call)
            self._push(place)
            if one.is_effect:
                self._effects.append(place)
            before, self._newest = one.ended_at, one.seq

    def of(self, *keys: str, spare: int = 0) -> Turn:
        """Return a context manager for an operation: its block performs the operation, and is left in its turn.
        `spare`: how many of its rows it does not wait for."""
        return Turn(self, keys, spare)

    def pass_over(self, key: str) -> None:
        """Let the others not wait for this result: it is handed out bit by bit, some of it before its row exists."""
        if (place := self._recorded.pop(key, None)) is not None:
            place.over = True
            self._look_soon()

    async def past_effects(self, concerns: Callable[[str], bool], *, hasty: bool = False) -> None:
        """Return when the workflow has reached the recorded effects whose keys it `concerns`, or does not come to
        them any more. What it does before that could be done in place of one of them.

        hasty: an effect is waited for no longer than a result, since it may come after what is done now.
        """
        self._effects = [one for one in self._effects if not one.asked and not one.over]
        found = [one for one in self._effects if one.before is not None and concerns(one.before.key)]
        if not found:
            return
        last = _Place(set(), seq=found[-1].seq, asked=True, hasty=concerns if hasty else None)
        self._push(last)
        try:
            await self.take(last)
        finally:
            self.end(last, ())

    @property
    def waiting(self) -> bool:
        """Whether a result waits for its turn."""
        return bool(self._waiting)

    def numbered(self, key: str, seq: int, *, is_last: bool = False) -> None:
        """Note the number of the row that records the result of `key`. `is_last`: the operation has no rows after it,
        because it failed."""
        self._newest = max(self._newest, seq)
        place = self._active.get(key)
        if place is None or place.seq is not None:
            return
        place.unnumbered.discard(key)
        if is_last or len(place.unnumbered) <= place.spare:
            place.seq = seq
            self._push(place)

    # For `Turn`

    def begin(self, keys: tuple[str, ...], spare: int = 0) -> _Place:
        place = self._begun_alone(keys[0]) if len(keys) == 1 else None
        place = place or self._begun_together(keys, spare)
        place.asked, place.asked_at = True, time.monotonic()
        self._active.update(dict.fromkeys(keys, place))
        self._look_soon()
        return place

    def _begun_alone(self, key: str) -> _Place | None:
        """Return the place of one operation whose result is recorded; None for any other."""
        place = self._recorded.get(key)
        if place is None or place.seq is None or place.over or place.before is None or place.before.only_begun:
            return None
        del self._recorded[key]
        if place.call is not None:
            place.call.over = True
        return place

    def _begun_together(self, keys: tuple[str, ...], spare: int) -> _Place:
        before = [self._recorded.pop(key, None) for key in keys]
        known = [one for one in before if one is not None and one.seq is not None]
        for one in known:
            if one.call is not None:
                one.call.over = True
        if len(known) == len(keys) == 1 and known[0].before is not None and known[0].before.only_begun:
            known[0].over = True  # its result gets a number of its own
            place = _Place(set(keys), spare)
        elif len(known) == len(keys) == 1:
            place = known[0]
        else:
            place = _Place({key for key, one in zip(keys, before, strict=True) if one is None}, spare)
            for one in known:
                one.over = True
            if keys and len(place.unnumbered) <= spare:  # its turn comes with the last row that it waited for
                last = sorted(known, key=lambda one: one.seq or 0)[len(keys) - spare - 1]
                place.seq, place.before = last.seq, last.before
        if place.seq is not None and (place.over or place not in known):
            place.over = False
            self._push(place)
        return place

    async def take(self, place: _Place) -> None:
        if place.seq is None:  # it has no row, for example because it failed: it follows what was recorded so far
            place.seq = self._newest
            self._push(place)
        self._run = self._run or run_of(copy_context())
        loop = asyncio.get_running_loop()
        at_once = self._at_once < _MOST_AT_ONCE and self._first() is place and self._is_idle(loop)
        if at_once and not self._left_s(place):
            self._at_once += 1
            self._hand_out(place)
            return
        self._at_once = 0
        place.turn = loop.create_future()
        self._waiting.add(place)
        self._look_soon()
        await place.turn

    def end(self, place: _Place, keys: tuple[str, ...]) -> None:
        place.over = True
        self._waiting.discard(place)
        for key in keys:
            self._active.pop(key, None)
        self._look_soon()

    # The order

    def _push(self, place: _Place) -> None:
        assert place.seq is not None
        self._pushed += 1
        heapq.heappush(self._order, (place.seq, self._pushed, place))

    def _first(self) -> _Place | None:
        while self._order and self._order[0][2].over:
            heapq.heappop(self._order)
        return self._order[0][2] if self._order else None

    def _hand_out(self, place: _Place) -> None:
        place.over = True
        self.handed_out = max(self.handed_out, place.seq or 0)
        if place.before is not None:
            self._pace.handed_out(place.before, time.monotonic())

    def _look_soon(self) -> None:
        if self._waiting and self._next is None:
            self._ticks = 0
            self._next = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Hand out the next result if the workflow has done everything that follows from the one before."""
        self._next = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        if self._ticks < _MOST_TICKS and not self._is_idle(loop):
            self._ticks += 1
            self._next = loop.call_soon(self._look)
            return
        first = self._first()
        if self._patience is not None and self._patience[0] is not first:
            self._patience[1].cancel()
            self._patience = None
        if first is None:
            return
        if self._held is not None:
            self._held.cancel()
        if first.turn is not None and (left := self._left_s(first)):
            self._held = loop.call_later(min(left, _LOOK_S), self._look_soon)
        elif first.turn is not None:
            self._hand_out(first)
            self._waiting.discard(first)
            if not first.turn.done():
                first.turn.set_result(None)
            self._look_soon()
        elif not first.asked and self._patience is None:
            self._patience = first, loop.call_later(first.patience_s, self._leave_out, first)

    def _left_s(self, place: _Place) -> float:
        """Return in how many seconds the result may be handed out (`TimerPace`)."""
        if place.before is None or not self._pace.matters:
            return 0.0
        timers = (one for one in getattr(asyncio.get_running_loop(), "_scheduled", ()) if self._is_of_workflow(one))
        left = self._pace.left_s(place.before, place.asked_at, timers, time.monotonic())
        if left > _SILENT_S and "pace" not in self._noticed:
            self._noticed.add("pace")
            self._notice(
                "the workflow waits for a timer that led to a call when it was recorded: until that fires, recorded "
                f"results come at the recorded intervals. The next one comes in {left:.0f} s"
            )
        return left

    def _is_of_workflow(self, timer: asyncio.TimerHandle) -> bool:
        """Whether the workflow has begun the timer, not one of its steps or this object."""
        owner = getattr(timer._callback, "__self__", None)  # type: ignore[attr-defined]
        return owner is not self and self._is_mine(timer) and not is_in_step(timer._context)  # type: ignore[attr-defined]

    def _is_idle(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether no other callback of the loop is ready, except those of other runs. Loops that do not tell (uvloop)
        count as busy."""
        ready = getattr(loop, "_ready", None)
        return ready is not None and (not ready or all(map(self._is_of_another, tuple(ready))))

    def _is_of_another(self, handle: asyncio.Handle) -> bool:
        theirs = run_of(handle._context)  # type: ignore[attr-defined]
        return self._run is not None and theirs is not None and theirs is not self._run

    def _leave_out(self, missing: _Place) -> None:
        """Leave out the recorded results that the workflow does not ask for, up to the first that it did ask for."""
        self._patience = None
        if self._waiting and self._first() is missing and not missing.asked:
            if self._may_still_come(missing):
                again = asyncio.get_running_loop().call_later(missing.patience_s, self._leave_out, missing)
                self._patience = missing, again
                return
            while (first := self._first()) is not None and not first.asked:
                if first is not missing and self._is_required(first):
                    break
                first.over = True
                if first.result is not None:
                    first.result.over = not first.result.asked
                if first.before is not None and first.before.is_effect:
                    self.left_out.append(first.before.key)
        self._look_soon()

    def _is_required(self, missing: _Place) -> bool:
        """Whether it is the place of an effect, and not all that wait are hasty about it."""
        was = missing.before
        if was is None or not was.is_effect:
            return False
        return not all(one.hasty is not None and one.hasty(was.key) for one in self._waiting)

    def _may_still_come(self, missing: _Place) -> bool:
        """Whether the workflow may make this call because of a timer, at the age at which it made it before.

        An effect is waited for even if no timer is seen: it may be in a thread. That does not hold if all that wait
        are hasty. Loops that do not tell (uvloop) count as having timers.
        """
        was, age_s = missing.before, time.monotonic() - self._begun
        if was is None or not was.age_s or (left := _SLACK * was.age_s + _LEAST_S - age_s) <= 0:
            return False
        timers = getattr(asyncio.get_running_loop(), "_scheduled", None)
        may = self._is_required(missing) or timers is None or any(map(self._is_mine, timers))
        if may and age_s > _SILENT_S and was.key not in self._noticed:
            self._noticed.add(was.key)
            self._notice(
                f"an earlier process called {was.what}, at most {was.age_s:.0f} s after it began: later results "
                f"wait until it is called again, for {left:.0f} s at most"
            )
        return may

    def _is_mine(self, timer: asyncio.TimerHandle) -> bool:
        return not timer.cancelled() and run_of(timer._context) is self._run  # type: ignore[attr-defined]


class Turn:
    """`async with turns.of(key)`: at the end of the block, wait until the result's turn has come. A cancelled
    operation does not wait."""

    def __init__(self, turns: Turns, keys: tuple[str, ...], spare: int) -> None:
        self._turns, self._keys, self._spare = turns, keys, spare

    async def __aenter__(self) -> None:
        self._place = self._turns.begin(self._keys, self._spare)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or issubclass(kind, Exception):
                await self._turns.take(self._place)
                self._turns.returned()
        finally:
            self._turns.end(self._place, self._keys)
