"""How early a replay may hand out a result while a timer of the workflow runs.

A replay has the recorded results at once. But a timer, such as that of `asyncio.sleep`, takes as long as before, and
what was recorded after the call that the timer led to waits for that call. A call that the workflow makes meanwhile
would be made too early: its own timeout could pass while its recorded result waits. So from the beginning of such a
timer, no result comes sooner after that beginning than it did when it was recorded. That ends when the timer has less
to go than the shortest timeout that the workflow has begun so far; without timeouts nothing is held back.

Which timers led to something, the times tell: a call at the time at which the timer fires, or the end of a call that
the workflow cancelled. If the workflow did one thing at a time, there is nothing to hold back.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from inspect import iscoroutine
from itertools import accumulate
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from ramify.runtime.journal.turns import Recorded

_GAP_S = 0.03
"""A call follows from a result if it comes within this time after it, and else perhaps from a timer."""
_EARLY_S, _LATE_S = 0.05, 0.3
"""A timer led to a call that was made so long before or after the time at which it fires: a call is recorded when it
begins, which may be a little later."""
_TIMEOUTS = ("asyncio.timeouts", "anyio", "async_timeout")  # modules whose timers cancel what runs too long
_SPARE = 0.5  # of the shortest timeout: a call that waits for a timer no longer than that has time left


class TimerPace:
    """recorded: the results that a replay is expected to ask for, by number. began: when the run began, in Unix
    seconds. now: the time of the loop's clock. resumed: when earlier processes resumed the run, in Unix seconds."""

    def __init__(self, recorded: Sequence[Recorded], began: float, now: float, resumed: Iterable[float] = ()) -> None:
        begun = sorted((one.started_at, one.ended_at) for one in recorded)
        self._starts = [start for start, _ in begun]
        self._ends = list(accumulate((end for _, end in begun), max))
        several = any(map(self._is_crossed, self._starts))  # calls were under way at once
        timed = (one for one, after in _with_result_before(recorded, began) if after > _GAP_S)
        self._calls = sorted(one.started_at for one in timed) if several else []
        self._cancels = sorted(one.ended_at for one in recorded if one.cancelled) if several else []
        self._behind = now - began  # the loop's time minus the recorded time, when the last result was handed out
        self._behind_resumed = [now - at for at in resumed]
        """The same for what an earlier process recorded that had resumed the run: its timers began at its own age."""
        self._behind_at: WeakKeyDictionary[asyncio.TimerHandle, float] = WeakKeyDictionary()
        """The same for each timer when it began, but infinite if it led to nothing."""
        self._shortest_s = float("inf")  # of the timeouts so far

    @property
    def matters(self) -> bool:
        """Whether any timer may have led to something."""
        return bool(self._calls or self._cancels)

    def handed_out(self, one: Recorded, now: float) -> None:
        self._behind = now - one.ended_at

    def left_s(self, one: Recorded, asked_at: float, timers: Iterable[asyncio.TimerHandle], now: float) -> float:
        """Return in how many seconds the result may be handed out. Call it before each, with the timers of the
        workflow: those that are new began after the last one.

        asked_at: when the workflow called it. It takes no longer than before, or its own timeout could pass.
        """
        pending = [(timer, self._behind_of(timer, now)) for timer in timers]
        left, enough_s = 0.0, _SPARE * self._shortest_s
        for timer, behind in pending:
            if one.ended_at + behind < timer.when():
                left = max(left, min(one.ended_at + behind, timer.when() - enough_s) - now)
        return min(left, max(0.0, asked_at + one.ended_at - one.started_at - now))

    def _behind_of(self, timer: asyncio.TimerHandle, now: float) -> float:
        if (behind := self._behind_at.get(timer)) is None:
            led_to = self._led_to(timer)
            if led_to and led_to[-1] is self._cancels:
                self._shortest_s = min(self._shortest_s, timer.when() - now)
            known = (
                each
                for each in (self._behind, *self._behind_resumed)
                if any(_has(times, timer.when() - each) for times in led_to)
            )
            behind = self._behind_at[timer] = next(known, float("inf"))
        return behind

    def _is_crossed(self, at: float) -> bool:
        """Whether a call began before that time and ended after it."""
        before = bisect_left(self._starts, at)
        return before > 0 and self._ends[before - 1] > at

    def _led_to(self, timer: asyncio.TimerHandle) -> list[list[float]]:
        """Return the times of what a timer of that kind may have led to."""
        callback: Callable[..., object] | None = timer._callback  # type: ignore[attr-defined]
        if callback is getattr(asyncio.futures, "_set_result_unless_cancelled", None):
            return [self._calls]  # asyncio.sleep
        if callback is getattr(asyncio.tasks, "_release_waiter", None):
            return [self._cancels] if _is_wait_for(timer) else [self._calls, self._cancels]  # the other: asyncio.wait
        owner = getattr(callback, "__self__", None)
        return [self._cancels] if type(owner).__module__.startswith(_TIMEOUTS) else []


def _with_result_before(recorded: Sequence[Recorded], began: float) -> Iterable[tuple[Recorded, float]]:
    """Yield each with the seconds from the last result before its call to the call."""
    numbers = [one.seq for one in recorded]
    for place, one in enumerate(recorded):
        known = place if one.called_after is None else bisect_left(numbers, one.called_after + 1)
        yield one, one.started_at - (recorded[known - 1].ended_at if known else began)


def _has(times: Sequence[float], fires: float) -> bool:
    place = bisect_left(times, fires - _EARLY_S)
    return place < len(times) and times[place] <= fires + _LATE_S


def _is_wait_for(timer: asyncio.TimerHandle) -> bool:
    """Whether the timer is that of `asyncio.wait_for`. In Python 3.11 it has the same callback as `asyncio.wait`."""
    (waiter,) = timer._args
    for callback, _ in waiter._callbacks or ():
        awaited = getattr(callback, "__self__", None)
        inner = awaited.get_coro() if isinstance(awaited, asyncio.Task) else None
        while iscoroutine(further := getattr(inner, "cr_await", None)):
            inner = further
        if getattr(inner, "__qualname__", "") == "wait_for":
            return True
    return False
