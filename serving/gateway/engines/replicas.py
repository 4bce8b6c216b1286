"""The engines behind one gateway: which of them are up, how fast each is, and which one a call goes to.

By default calls wait in one queue before all replicas and are bound to one only when it has a free slot, so no call
stands behind a slow replica while a fast one idles.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ramify.serving.gateway.engines.service_time import Service, ServiceModel
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.policy.cost_model import aggregate_engines, before_token_s
from ramify.serving.policy.refusal_probe import RefusalProbe
from ramify.serving.policy.types import Capacity, Needs, RequestId, RequestView

_K = 2  # replicas compared for a call, of those with a free slot (the power of K choices)
_BACKOFF_S = 0.5
_BACKOFF_CAP_S = 30.0
_AFFINITIES = 10_000  # remembered; the oldest go first
_UNKNOWN_TOKENS = 128.0  # an answer's length where nothing is known: only the comparison needs it


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What can be asked of an engine beyond OpenAI's API."""

    reads_tags: bool = False  # it reads our tags in `vllm_xargs`; most servers refuse fields that they do not know
    can_resume: bool = False  # it goes on with an answer whose beginning it is given
    # What it has read stays for the next call. None: not ours to say; its server may be a gateway, which knows.
    keeps_prefixes: bool | None = None
    llama_cpp: bool = False  # shapes end it that others can make, and some it overlooks (shapes.py)


@dataclass(frozen=True, slots=True)
class Stay:
    """A call's time in an engine."""

    began: float
    worked: float  # by the replica, until then
    waited: bool  # it came when the engine had as many as it works on at once, and waited inside


@dataclass
class Replica:
    """One engine, and what the gateway knows of it.

    `slots` calls are worked on at once; the engine takes up to `queue` more and holds them in a queue of its own.
    """

    index: int
    slots: int
    upstream: Upstream | None  # None while its process is being started again
    traits: EngineTraits = EngineTraits()
    alias: str | None = None  # what its engine calls its model, where that is ours to say
    running: int = 0
    model: ServiceModel = field(default_factory=ServiceModel)
    down_until: float = 0.0
    failures: int = 0  # in a row
    restarts: int = 0
    false_starts: int = 0  # of its next life, in a row
    queue: int = 0
    doubt: RefusalProbe = field(default_factory=RefusalProbe)
    # Of an engine of ours, asked when it has lost a call: is it over, and will it be started again?
    comes_back: Callable[[], Awaitable[bool]] | None = None
    _stays: dict[RequestId, Stay] = field(default_factory=dict)
    _worked: float = 0.0  # seconds of work on calls, summed over those that were worked on
    _worked_at: float = 0.0
    _prefixes: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)  # how the last one went

    def up(self, now: float) -> bool:
        return self.upstream is not None and now >= self.down_until

    @property
    def free(self) -> int:
        """Calls that can be let in."""
        return max(0, self.slots + self.queue - self.running)

    def enter(self, id_: RequestId, now: float) -> None:
        """A call is let in."""
        self._work(now)
        self.running += 1
        self._stays[id_] = Stay(now, self._worked, self.running > self.slots)

    def leave(self, id_: RequestId, now: float) -> None:
        self._work(now)
        self.running -= 1
        self._stays.pop(id_, None)

    def beside(self, id_: RequestId, now: float) -> float:
        """Calls that were worked on during this one's stay, itself included, on average."""
        self._work(now)
        stay = self._stays.get(id_)
        if stay is None or now <= stay.began:
            return max(1.0, min(self.running, self.slots))
        return max(1.0, (self._worked - stay.worked) / (now - stay.began))

    def waited(self, id_: RequestId) -> bool:
        """Did this call wait inside the engine, so far as the gateway can see?"""
        stay = self._stays.get(id_)
        return stay is not None and stay.waited

    def _work(self, now: float) -> None:
        self._worked += min(self.running, self.slots) * max(0.0, now - self._worked_at)
        self._worked_at = now

    def read(self, cached_as: str, took_s: float, tokens: int) -> bool:
        """Such a call was answered here. Had one been before, so that its prompt may have come from the engine's
        cache?"""
        before = cached_as in self._prefixes
        self._prefixes[cached_as] = (took_s, max(1, tokens))
        self._prefixes.move_to_end(cached_as)
        while len(self._prefixes) > _AFFINITIES:
            self._prefixes.popitem(last=False)
        return before and self.traits.keeps_prefixes is not False

    def may_do(self, call: RequestView, cached_as: str | None, needs: Needs, now: float) -> bool:
        """Is a call to be let in that the policy would refuse on an estimate? Only where a slot is free, so that it
        keeps nobody waiting: where the evidence allows that the call is in time, and now and then as a test."""
        if self.running >= self.slots:
            return False
        last = None if cached_as is None else self._prefixes.get(cached_as)
        prompt = 1 if last is not None and self.traits.keeps_prefixes else call.to_prefill
        least_s = min(needs.own_s, self.model.least_s(prompt, needs.tokens, self.running + 1.0))
        if last is not None and self.traits.keeps_prefixes is None:  # as quick as that, whether it has a cache or not
            least_s = min(least_s, last[0] * max(1.0, needs.tokens / last[1]))
        return self.doubt.should_admit(least_s + needs.later_s, needs.due - now, now)

    def capacity(self, leaving: int = 0) -> Capacity:
        """Its own, as a policy sees it; none while its process is being started again. `leaving`: of those that run,
        how many are on their way out."""
        return Capacity(
            slots=0 if self.upstream is None else self.slots,
            running=max(0, self.running - leaving),
            step=self.model.step,
            can_preempt=self.traits.can_resume,
            can_cancel=True,
            queue=0 if self.upstream is None else self.queue,
        )

    def lost(self, now: float) -> None:
        """It failed a call: no more for a while, longer each time in a row."""
        self.failures += 1
        self.down_until = now + min(_BACKOFF_CAP_S, _BACKOFF_S * 2 ** (self.failures - 1))

    def answered(self, seen: Service | None) -> None:
        """It gave a whole answer. `seen`: None where that says nothing of its speed."""
        self.failures, self.down_until = 0, 0.0
        if seen is not None:
            self.model.observe(seen)

    def expected_s(self, call: RequestView) -> float:
        """Until the call's answer is whole, were it to start here now."""
        step = self.model.step
        tokens = call.sketch.quantile(0.5, call.generated) if call.sketch else _UNKNOWN_TOKENS
        rounds = 1 + self.running // self.slots  # who comes when all are taken waits inside for an answer to end
        beside = min(self.running + 1, self.slots)
        context = (call.prompt_tokens + call.generated) * beside
        return step.step_ms(beside, context) * tokens * rounds / 1000 + before_token_s(step, call.to_prefill)


class Replicas:
    """All of them. Raises ValueError without any."""

    def __init__(self, replicas: Sequence[Replica], *, seed: int = 0) -> None:
        if not replicas:
            raise ValueError("a gateway needs an engine")
        self.all = tuple(replicas)
        self._rng = random.Random(seed)
        self._homes: OrderedDict[str, int] = OrderedDict()

    @property
    def llama_cpp(self) -> bool:
        """May a call go to one that is this?"""
        return any(r.traits.llama_cpp for r in self.all)

    def usable(self, now: float) -> list[Replica]:
        """Those that are up; where none is, those that have a process at all: their error is the answer then."""
        return [r for r in self.all if r.up(now)] or [r for r in self.all if r.upstream is not None]

    def able(self, now: float, avoid: frozenset[int]) -> list[Replica]:
        """Those that a call which `avoid` have failed may wait for; never none. One that is being started again is
        among them where no other is up that has not failed it."""
        usable = self.usable(now)
        others = [r for r in usable if r.index not in avoid]
        return others or self._away(avoid) or usable or list(self.all)

    def capacity(
        self, now: float, *, can_cancel: bool = True, leaving: Mapping[int, int] = MappingProxyType({})
    ) -> Capacity:
        """All that are up as one engine, each slot as fast as the fastest one's: refusals rest on what is possible,
        not likely. `leaving`: by replica, how many of those that run are on their way out."""
        here = self.usable(now)
        fastest, slots = self.fastest(now), sum(r.slots for r in here)
        return Capacity(
            slots=slots,
            running=max(0, sum(r.running - leaving.get(r.index, 0) for r in here)),
            step=aggregate_engines(fastest.model.step, max(1.0, slots / max(1, fastest.slots))),
            can_preempt=bool(here) and all(r.traits.can_resume for r in here),
            can_cancel=can_cancel,
            queue=sum(r.queue for r in here),
        )

    def fastest(self, now: float) -> Replica:
        """Of those that are up; of all where none is."""
        return min(self.usable(now) or self.all, key=lambda r: r.model.step.step_ms(1, 0))

    def place(self, call: RequestView, now: float, affinity: str | None, avoid: frozenset[int]) -> Replica | None:
        """A replica with a free slot: its siblings' or its prefix's where that is one, else the better of a few.

        None where there is none. `avoid` are those that have failed this call; they serve where nothing else does, or
        will: one that is being started again is waited for until it has failed to start.
        """
        free = [r for r in self.usable(now) if r.free]
        if not (others := [r for r in free if r.index not in avoid]):
            others = [] if self._away(avoid) else free
        free = others
        if not free:
            return None
        home = self.home(affinity)
        chosen = home if home in free else None
        if chosen is None:
            some = free if len(free) <= _K else self._rng.sample(free, _K)
            chosen = min(some, key=lambda r: (r.expected_s(call), r.running / r.slots, r.index))
        if affinity:
            self.remember(affinity, chosen)
        return chosen

    def _away(self, avoid: frozenset[int]) -> list[Replica]:
        """Those that are being started again and have not failed the call."""
        return [r for r in self.others(avoid) if r.upstream is None and r.comes_back is not None]

    def others(self, avoid: frozenset[int]) -> list[Replica]:
        """Those that may yet do a call which `avoid` have failed."""
        hoped = (r for r in self.all if r.upstream is not None or not r.false_starts)
        return [r for r in hoped if r.index not in avoid]

    def home(self, affinity: str | None) -> Replica | None:
        """Where calls with this affinity are best, so far as there were any."""
        index = self._homes.get(affinity) if affinity else None
        return None if index is None else self.all[index]

    def room(self, now: float) -> bool:
        """Has any of them a free slot?"""
        return any(r.free for r in self.usable(now))

    def remember(self, affinity: str, home: Replica) -> None:
        """Calls with this affinity are best there from now on."""
        self._homes[affinity] = home.index
        self._homes.move_to_end(affinity)
        while len(self._homes) > _AFFINITIES:
            self._homes.popitem(last=False)

    def wakes_at(self, now: float) -> float | None:
        """When one that is down may be tried again."""
        return min((r.down_until for r in self.all if r.upstream is not None and r.down_until > now), default=None)
