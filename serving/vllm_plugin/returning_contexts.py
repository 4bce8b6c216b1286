"""`ReturningContexts`: contexts that were given up come back from vLLM's CPU tier before their programs do.

With `--kv-offloading-size`, vLLM copies blocks to host memory, and loads them when a call needs them. That call waits
for the copy. Here a context is loaded ahead, into memory that is free, shortly before its program is expected.

vLLM loads for requests only. So a load is a request that no client made: it stands in none of vLLM's queues, is never
computed, and ends when its blocks are there. Then they are held like those of any context (`kept_contexts`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Any

from ramify.serving.policy.kv_retention import IdleContext
from ramify.serving.vllm_plugin.version_adapters import LATER, Adapter, Remembered, RequestLike

_LOOK_S = 0.25  # between looks for contexts to bring back
_EARLY_S = 1.0  # a load begins so long before it must: nobody knows to the second when a tool ends
_FLIGHTS = 2  # loads at once: they share the way to the host's memory with those that calls wait for
_REMEMBERED = 4  # contexts of so many times the engine's KV are remembered,
_MOST = 512  # and so many at most: each look goes through all
_LINK = 25e9  # bytes a second, until loads have been timed
_PRIOR_TOKENS = 10_000  # what that guess weighs
_FORGET = 0.95  # of what was timed is kept with each load


@dataclass(slots=True)
class _Away:
    context: IdleContext
    stage: int
    known: Remembered


@dataclass(frozen=True, slots=True)
class Flight:
    """A context that is loaded."""

    context: IdleContext
    stage: int
    request: RequestLike
    tokens: int  # loaded
    since: float


class ReturningContexts:
    """Those of one engine. For one thread, as vLLM's scheduler."""

    def __init__(
        self,
        adapter: Adapter,
        token_bytes: int,
        kv_tokens: int,
        back_in: Callable[[IdleContext, float], float] | None,
    ) -> None:
        """`token_bytes`: of a token's KV. `kv_tokens`: what the engine's KV holds. `back_in`: the seconds until a
        program's next call, as expected; None: nothing is brought back, and only the price of a load is known.
        """
        self._adapter, self._back_in = adapter, back_in
        self._most = _REMEMBERED * kv_tokens
        self._away: OrderedDict[str, _Away] = OrderedDict()  # by chain
        self._tokens = 0  # of those
        self._flights: dict[str, Flight] = {}
        self._seconds, self._loaded = _PRIOR_TOKENS * token_bytes / _LINK, float(_PRIOR_TOKENS)
        self._looked_at = float("-inf")
        self._later = False  # the tier put a question off in the last look
        self._number = 0
        self.brought_back = 0  # contexts

    @property
    def copy_ms(self) -> float:
        """Milliseconds to load a token."""
        return 1000 * self._seconds / self._loaded

    def left(self, scheduler: Any, request: RequestLike, context: IdleContext, stage: int) -> None:
        """A call of a chain has ended, and another may follow. Call it before vLLM frees the request."""
        if self._back_in is None:
            return
        self.forget(context.program)
        known = self._adapter.remember(scheduler, request)
        if not known.block_hashes:
            return
        self._away[context.program] = _Away(context, stage, known)
        self._tokens += len(known.tokens)
        while self._tokens > self._most or len(self._away) > _MOST:
            self._tokens -= len(self._away.popitem(last=False)[1].known.tokens)

    def forget(self, chain: str) -> None:
        """Nobody awaits the chain's next call: it is here, or does not come."""
        away = self._away.pop(chain, None)
        if away is not None:
            self._tokens -= len(away.known.tokens)

    def forget_all(self, scheduler: Any) -> None:
        """Bring nothing back of what was computed until now."""
        self._away.clear()
        self._tokens = 0
        self.abandon(scheduler)

    def landed(self, scheduler: Any, now: float) -> list[Flight]:
        """Return the contexts that are there now. Call `ended` for each."""
        for chain in [chain for chain, one in self._flights.items() if one.request.is_finished()]:
            del self._flights[chain]  # vLLM ended it with all other requests
        done = [one for one in self._flights.values() if self._adapter.is_loaded(scheduler, one.request)]
        for one in done:
            self._seconds = _FORGET * self._seconds + max(0.0, now - one.since)  # the clock may be set back
            self._loaded = _FORGET * self._loaded + one.tokens
            del self._flights[one.context.program]
        self.brought_back += len(done)
        return done

    def ended(self, scheduler: Any, flight: Flight) -> None:
        """Let go of what vLLM holds for the load."""
        self._adapter.end_load(scheduler, flight.request)

    def abandon(self, scheduler: Any) -> None:
        """A load has failed, and nobody knows which blocks are right: none of those on their way is used."""
        for one in self._flights.values():
            self._adapter.end_load(scheduler, one.request)
        self._flights.clear()

    def begin(self, scheduler: Any, held: Collection[str], spare: int, now: float, *, idle: bool) -> None:
        """Begin to load contexts that fit into `spare` tokens of free KV, the nearest return first.

        `held`: chains that are in KV. `idle`: no call runs or waits, so nothing is looked at again before the next
        call, and the engine has nothing better to do.
        """
        hurries = idle and not self._later  # an idle engine does not ask the tier again and again
        if self._back_in is None or not self._away or (now < self._looked_at + _LOOK_S and not hurries):
            return
        self._looked_at, self._later = now, False
        due = []
        for chain, one in self._away.items():
            size = len(one.known.tokens)
            if size > spare or chain in held or chain in self._flights:
                continue
            left_s = self._back_in(one.context, now)
            if (idle and left_s < inf) or left_s <= _EARLY_S + 2 * size * self.copy_ms / 1000:
                due.append((left_s, chain))
        for _, chain in sorted(due):
            if len(self._flights) >= _FLIGHTS:
                return
            spare -= self._begin(scheduler, chain, spare, now)

    def _begin(self, scheduler: Any, chain: str, spare: int, now: float) -> int:
        """Return how many tokens of KV the load takes."""
        one = self._away[chain]
        size = len(one.known.tokens)
        if size > spare:
            return 0
        self._number += 1
        begun = self._adapter.begin_load(scheduler, one.known, f"ramify-return-{self._number}")
        if begun is LATER:
            self._later = True
            return 0
        self.forget(chain)  # once for each time away: what is given up again was not worth its memory
        if begun is None:
            return 0
        request, tokens = begun
        self._flights[chain] = Flight(one.context, one.stage, request, tokens, now)
        return size
