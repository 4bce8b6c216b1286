"""Which contexts stay in KV while their programs wait for a tool.

An agent's next call repeats its whole context and adds a tool's result. Its prompt is cheap if the KV of the last
call is still there, and costs a whole prefill if other calls have taken the blocks. An engine evicts what was used
least recently. With more agents than fit, that is always the one that comes back next, and every call is computed
anew.

`Retention` decides which contexts are worth their memory. The host (`ramify.serving.vllm_plugin.kept_contexts`) holds
the blocks and asks before each step. `CostAware` is ours. It knows how long tools take (the plan's estimate, or
`ReturnTimes`), how many return at all (`ReturnTimes`: a hint may be wrong), what a prefill costs, and how much of the
engine is idle.

`ReturnTimes` learns whether, and when, programs come back, by the product-limit estimator (Kaplan and Meier 1958): a
program that is away still counts as one that has not come back yet, so those that never do lower the chance without
ever being reported. A program that is said to be over does not count. Announced returns
are only hints: the contexts of a client whose announced returns do not happen are soon given up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import neg
from typing import Protocol, runtime_checkable

from ramify.serving.policy.types import StepModel

_HOPE = 0.15  # with a lesser chance of a return, a context is worth no more than what the engine finds by itself


@dataclass(frozen=True, slots=True)
class IdleContext:
    """The context of a program whose latest call has ended and whose next call has not started."""

    program: str  # with its branch: `CompoundView.chain`
    tokens: int  # in KV
    since: float  # when its latest call ended
    expected_s: float | None = None  # time of the tool by the plan; None: the plan does not say
    until: float | None = None  # after that time nobody comes back to it, by its client
    waits: bool = False  # its next call has arrived and waits for a slot


@dataclass(frozen=True, slots=True)
class Room:
    """The engine's memory and load before a step. Tokens of KV."""

    free: int
    growth: int  # what the running calls need in this step; without it vLLM preempts one of them
    wanted: int  # what the first waiting call needs to start
    running: int  # calls that run
    step: StepModel
    context: int  # tokens in KV of the running calls
    idle_share: float  # of recent time in which no call ran
    prefill: float = 0.0  # prompt tokens that a step computes, in the mean
    patient: bool = True  # False: the first waiting call has been passed for so long that it must have its memory
    copy_ms: float | None = None  # of a token from a CPU tier; None: what is given up is computed again


class Retention(Protocol):
    """Decides which idle contexts to give up. Deterministic; it reads no clock."""

    @property
    def backfills(self) -> bool:
        """While the first waiting call lacks memory, may calls whose contexts are held start before it?"""

    def release(self, idle: Sequence[IdleContext], room: Room, now: float) -> Sequence[str]:
        """Return the programs whose contexts are given up at the time `now`."""

    def hopeless(self, idle: Sequence[IdleContext], now: float) -> Sequence[str]:
        """Return the programs whose contexts are not held even while there is room: the engine may keep what it finds
        better.
        """

    def left(self, program: str, at: float) -> None:
        """Learn that a call of the program has ended, and that it may go on."""

    def over(self, program: str) -> None:
        """Learn that the program does not come back."""

    def returned(self, program: str, after_s: float) -> None:
        """Learn that the program's next call came `after_s` seconds after its latest call ended."""


@runtime_checkable
class Foresees(Protocol):
    """A retention that expects returns at a time, for hosts that can bring contexts back before."""

    def back_in(self, one: IdleContext, now: float) -> float:
        """Return the seconds until the program's next call, as expected; infinite if there is little hope."""


class CostAware:
    """Ours: gives a context up if the engine gains more by the memory than the prefill that is done again costs.

    Running calls always get their memory: a preemption costs a whole prefill and gains nothing. For a waiting call a
    context is given up only if the time in which the engine could do more than it does, until the program is back,
    exceeds the prefill of the context. An engine that is busy with those that fit gains nothing from one more. But no
    call waits for that for ever: programs without an end would starve it.

    A prefill takes the time of the whole engine. A copy from a CPU tier holds up one call only, as a lack of memory
    does. So with a tier a context is given up if its program returns later than the copy would take.
    """

    backfills = True

    def __init__(self) -> None:
        self._times = ReturnTimes()

    def hopeless(self, idle: Sequence[IdleContext], now: float) -> Sequence[str]:
        return [one.program for one in idle if not one.waits and self._return(one, now)[1] < _HOPE]

    def back_in(self, one: IdleContext, now: float) -> float:
        left_s, chance = self._return(one, now)
        return left_s if chance >= _HOPE else inf

    def left(self, program: str, at: float) -> None:
        self._times.left(program, at)

    def over(self, program: str) -> None:
        self._times.over(program)

    def returned(self, program: str, after_s: float) -> None:
        self._times.returned(program, after_s)

    def release(self, idle: Sequence[IdleContext], room: Room, now: float) -> Sequence[str]:
        ranked = sorted(idle, key=lambda one: self._density(one, room.step, now))
        given, free = list[str](), room.free
        while free < room.growth and ranked:
            one = ranked.pop(0)
            given.append(one.program)
            free += one.tokens
        return [*given, *self._for_waiting(ranked, room, room.growth + room.wanted - free, now)]

    def _for_waiting(self, ranked: Sequence[IdleContext], room: Room, short: int, now: float) -> list[str]:
        """Return the contexts to give up so that the first waiting call has its `short` tokens, or none."""
        given, cost, gain = list[str](), 0.0, 0.0
        again_ms, share = room.step.per_prefill_ms, self._spare(room)
        if room.copy_ms is not None:
            again_ms, share = room.copy_ms, 1.0
        for one in ranked:
            if short <= 0:
                break
            if one.waits and room.running and room.patient:
                continue  # it starts itself as soon as there is a slot
            left_s, chance = self._return(one, now)
            cost += chance * again_ms / 1000 * one.tokens
            gain = max(gain, left_s * share)
            given.append(one.program)
            short -= one.tokens
        pays = cost <= gain or not room.running or not room.patient
        return given if short <= 0 and pays else []

    def _return(self, one: IdleContext, now: float) -> tuple[float, float]:
        """Return the seconds until the program's next call, and the chance that this call comes."""
        if one.waits:
            return 0.0, 1.0
        if one.until is not None and now >= one.until:
            return 0.0, 0.0
        elapsed = now - one.since
        left_s, chance = self._times.remaining(elapsed, now)
        if one.expected_s is not None and elapsed < one.expected_s:
            left_s = one.expected_s - elapsed
            # A plan may say anything. Nothing is held in the hope of a time that no program ever took.
            if one.expected_s <= self._times.longest_s:
                chance = max(chance, self._times.share)
        return left_s, chance

    def _density(self, one: IdleContext, step: StepModel, now: float) -> float:
        """What a token of the context saves for each second that it stays: least first."""
        left_s, chance = self._return(one, now)
        return chance * step.per_prefill_ms / (1.0 + left_s)

    @staticmethod
    def _spare(room: Room) -> float:
        """Return the share of time in which one call more would cost nothing: the engine is idle, or a step's fixed
        part is shared by one more. Prompts have no such part: two at once take twice the time.
        """
        if not room.running:
            return 1.0
        step_ms = room.step.step_ms(room.running, room.context, room.prefill)
        shared = room.step.base_ms / step_ms if step_ms else 0.0
        return room.idle_share + (1 - room.idle_share) * shared / (room.running + 1)


_LATEST = 1024  # departures of which this is learnt
_PRIOR = (2.5, 5.0, 10.0, 20.0, 40.0)  # seconds: programs that came back before any was seen
_RENEW_S = 1.0  # the estimate is made again when it is older than this,
_RENEW_LEFT = 16  # or when this many programs have left or returned since


@dataclass(slots=True)
class _Departure:
    at: float
    after_s: float | None = None  # when the program was back; None: it is away
    over: bool = False  # it said that it would not come back


class ReturnTimes:
    """For one thread. Times are on the caller's clock, in seconds.

    Departures that ended in a return and others leave the window together. Otherwise a few returns, seen over hours,
    would stand beside the many of the last minute that stay away.
    """

    def __init__(self) -> None:
        self._latest: deque[tuple[str, _Departure]] = deque()  # the latest last
        self._away: dict[str, _Departure] = {}  # those of them that are away
        self._times: list[float] = []  # the estimate: at each of these times away,
        self._stay: list[float] = []  # so many stay away for longer
        self._made_at: float | None = None
        self._news = 0

    def left(self, program: str, at: float) -> None:
        """A program went away."""
        self._news += 1
        if (known := self._away.get(program)) is not None:  # another of its calls has ended
            known.at = at
            return
        self._away[program] = departure = _Departure(at)
        self._latest.append((program, departure))
        if len(self._latest) > _LATEST:
            oldest, departure = self._latest.popleft()
            if self._away.get(oldest) is departure:
                del self._away[oldest]

    def returned(self, program: str, after_s: float) -> None:
        """It is back. Nothing is learnt from a departure that is too old to be known."""
        departure = self._away.pop(program, None)
        if departure is not None:
            departure.after_s = after_s
            self._news += 1

    def over(self, program: str) -> None:
        """It will not come back, and said so."""
        departure = self._away.pop(program, None)
        if departure is not None:
            departure.over = True

    @property
    def longest_s(self) -> float:
        """The longest time after which a program came back."""
        return self._times[-1] if self._times else _PRIOR[-1]

    @property
    def share(self) -> float:
        """The share of programs that come back within the times seen."""
        return 1.0 - self._stay[-1] if self._stay else 1.0

    def remaining(self, elapsed: float, now: float) -> tuple[float, float]:
        """Return for a program that has been away for `elapsed` seconds: the median time until it returns, if it
        does, and the chance that it does within the times seen.
        """
        self._renew(now)
        at = bisect_right(self._times, elapsed)
        stay = self._stay[at - 1] if at else 1.0
        last = self._stay[-1]
        if at == len(self._times) or stay <= last:
            return max(_PRIOR[2], elapsed), 0.0
        half = (stay + last) / 2
        median = self._times[bisect_left(self._stay, -half, lo=at, key=neg)]
        return median - elapsed, (stay - last) / stay

    def _renew(self, now: float) -> None:
        fresh = self._made_at is not None and now - self._made_at < _RENEW_S
        if fresh and self._news < _RENEW_LEFT:
            return
        self._made_at, self._news = now, 0
        seen = [one for _, one in self._latest if not one.over]
        back = sorted((*_PRIOR, *[one.after_s for one in seen if one.after_s is not None]))
        away = sorted([max(0.0, now - one.at) for one in seen if one.after_s is None])
        self._times, self._stay, stay = [], [], 1.0
        for number, gap in enumerate(back):
            at_risk = len(back) - number + len(away) - bisect_left(away, gap)
            stay *= 1 - 1 / at_risk
            self._times.append(gap)
            self._stay.append(stay)
