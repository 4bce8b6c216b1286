"""Published ways to treat an agent's KV while it waits for a tool, from their papers.

- Continuum (Li et al. 2025, arXiv 2511.02230): each context has a time to live that maximises its expected utility.
- InferCept (Abhyankar et al. 2024, arXiv 2402.01869): a context stays while that wastes less memory-time than
  computing it again, or, with a CPU tier, than copying it back.
- ThunderAgent (Kang et al. 2026, arXiv 2602.13692): vLLM's LRU behind a gate that admits whole programs.

All serve programs by arrival.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.replay.baselines.ordered import Ordered, Scene
from ramify.serving.policy.kv_retention import IdleContext, Room
from ramify.serving.policy.types import RequestView

_SEEN = 512  # gaps remembered, the latest ones


def by_program() -> Ordered:
    """First come, first served, by the arrival of the program (Continuum §4.3).

    All programs of a replay have the same limit, so the deadline tells the arrival.
    """
    return Ordered(_program_arrival)


def _program_arrival(call: RequestView, scene: Scene) -> float:
    compound = call.compound
    return call.arrived if compound is None or compound.deadline is None else compound.deadline


class Continuum:
    """A time to live for each context: the τ among the gaps seen that maximises P(gap <= τ)·(prefill + delay) -
    E[min(gap, τ)]. The delay is the mean time that a call whose context was lost waited to start.
    """

    backfills = False

    def __init__(self, delay_s: float = 10.0) -> None:
        self._delay_s = delay_s
        self._latest: deque[float] = deque()
        self._gaps: list[float] = []  # the same, sorted

    def hopeless(self, idle: Sequence[IdleContext], now: float) -> Sequence[str]:
        """It gives up only for room."""
        return ()

    def left(self, program: str, at: float) -> None:
        """It does not count those that are away."""

    def over(self, program: str) -> None:
        """As `left`."""

    def returned(self, program: str, after_s: float) -> None:
        self._latest.append(after_s)
        insort(self._gaps, after_s)
        if len(self._gaps) > _SEEN:
            del self._gaps[bisect_left(self._gaps, self._latest.popleft())]

    def release(self, idle: Sequence[IdleContext], room: Room, now: float) -> Sequence[str]:
        given, free = list[str](), room.free
        need = room.growth + room.wanted
        for one in sorted(idle, key=lambda one: one.since):
            if free >= need:
                return given
            if not one.waits and now - one.since > self._ttl_s(one, room):
                given.append(one.program)
                free += one.tokens
        # Pinned contexts yield to running calls, and to anyone if nothing runs: else the engine would stand still.
        need = room.growth + (0 if room.running else room.wanted)
        for one in sorted(idle, key=lambda one: -one.since):
            if free >= need:
                break
            if one.program not in given:
                given.append(one.program)
                free += one.tokens
        return given

    def _ttl_s(self, one: IdleContext, room: Room) -> float:
        saved = room.step.per_prefill_ms / 1000 * one.tokens + self._delay_s
        best, best_s, below = 0.0, 0.0, 0.0
        count = len(self._gaps)
        for at, gap in enumerate(self._gaps, start=1):
            below += gap
            utility = (at * saved - below - (count - at) * gap) / count
            if utility > best:
                best, best_s = utility, gap
        return best_s if count else saved


class InferCept:
    """Keeps a context while that wastes less memory than computing it again (§4.2): the time away so far stands for
    the time still to come; computing again holds up what else is in memory.

    On an engine with a CPU tier, copying it back takes the place of computing it.
    """

    backfills = False

    def hopeless(self, idle: Sequence[IdleContext], now: float) -> Sequence[str]:
        """It gives up only for room."""
        return ()

    def left(self, program: str, at: float) -> None:
        """InferCept does not learn."""

    def over(self, program: str) -> None:
        """InferCept does not learn."""

    def returned(self, program: str, after_s: float) -> None:
        """InferCept does not learn."""

    def release(self, idle: Sequence[IdleContext], room: Room, now: float) -> Sequence[str]:
        given, free, need = list[str](), room.free, room.growth + room.wanted
        again_ms = room.step.per_prefill_ms if room.copy_ms is None else min(room.step.per_prefill_ms, room.copy_ms)

        def excess(one: IdleContext) -> float:
            back_s = again_ms / 1000 * one.tokens
            return (now - one.since) * one.tokens - back_s * (one.tokens / 2 + room.context)

        for one in sorted(idle, key=excess, reverse=True):
            if free >= need:
                break
            must = free < room.growth or not room.running
            if must or (excess(one) > 0 and not one.waits):
                given.append(one.program)
                free += one.tokens
        return given


@dataclass(slots=True)
class _Admitted:
    tokens: int
    acting_since: float | None = None  # it waits for a tool; None: a call of it is in the engine


class ThunderAgent:
    """A gate before the engine: the contexts of the admitted programs fit into its memory.

    A program that waits for a tool counts less with time (half after `half_life_s`). If those admitted do not fit any
    more, programs that wait for tools are put back, the shortest context first (its recomputation costs least).
    """

    def __init__(self, capacity: int, half_life_s: float = 20.0) -> None:
        self._capacity, self._half_life_s = capacity, half_life_s
        self._in: dict[int, _Admitted] = {}

    def enters(self, program: int, tokens: int, now: float) -> bool:
        """May a call with a prompt of so many tokens enter the engine now?"""
        mine = self._in.get(program)
        if mine is not None:
            mine.tokens, mine.acting_since = max(mine.tokens, tokens), None
            self._put_back(now)
            return True
        if self._in and self._used(now) + tokens > self._capacity:
            return False
        self._in[program] = _Admitted(tokens)
        return True

    def acts(self, program: int, tokens: int, now: float) -> None:
        """The program's calls have ended, and it waits for a tool."""
        self._in[program] = _Admitted(tokens, now)

    def ends(self, program: int) -> None:
        self._in.pop(program, None)

    def _used(self, now: float) -> float:
        return sum(
            one.tokens * (1.0 if one.acting_since is None else 0.5 ** ((now - one.acting_since) / self._half_life_s))
            for one in self._in.values()
        )

    def _put_back(self, now: float) -> None:
        acting = sorted((one.tokens, p) for p, one in self._in.items() if one.acting_since is not None)
        for _, program in acting:
            if self._used(now) <= self._capacity:
                return
            del self._in[program]
