"""The engines behind one gateway: which are up, how fast each is, and which of them a call goes to.

By default calls wait in one queue in front of all replicas. A call is bound to a replica only when that has a free
slot, so no call waits for a slow replica while a fast one is idle.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ramify.serving.gateway.dialects import Details
from ramify.serving.gateway.engines.client_isolation import Isolation, with_own_cache
from ramify.serving.gateway.engines.engine_fields import apart
from ramify.serving.gateway.engines.service_time import ServiceModel, ServiceSample, arrived_at_once
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.records.calls import Call
from ramify.serving.policy.cost_model import aggregate_engines, before_token_s
from ramify.serving.policy.refusals import RefusalProbe
from ramify.serving.policy.types import Capacity, Needs, RequestId, RequestView
from ramify.serving.protocol.agent_hints import HintDialect

_K = 2  # replicas with a free slot that are compared for a call (the power of K choices)
_BACKOFF_S = 0.5
_BACKOFF_CAP_S = 30.0
_AFFINITIES = 10_000  # remembered; the oldest go first
_UNKNOWN_TOKENS = 128.0  # the length of an answer when nothing is known; used for comparisons only


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What an engine can do beyond OpenAI's API."""

    reads_tags: bool = False  # it reads our tags in `vllm_xargs`; most servers refuse unknown fields
    can_resume: bool = False  # it can continue an answer whose beginning it is given
    hints: HintDialect | None = None  # it reads such hints about agents
    # It keeps the prompts that it has read for the next call. None: unknown; its server may be a gateway, which
    # knows.
    keeps_prefixes: bool | None = None
    most_characters: int | None = None  # a longer prompt cannot fit its context; None: unknown
    llama_cpp: bool = False  # it cannot cope with some output constraints that others can (see constraint_checks)


@dataclass(frozen=True, slots=True)
class EngineStay:
    """A call's time in an engine."""

    began: float
    worked: float  # the replica's `_worked` at that time
    waited: bool  # all slots were taken, so the call waited inside the engine


@dataclass
class Replica:
    """One engine, and what the gateway knows of it.

    The engine works on `slots` calls at once, and takes up to `queue` more into a queue of its own.
    """

    index: int
    slots: int
    upstream: Upstream | None  # None while its process is restarted
    traits: EngineTraits = EngineTraits()
    alias: str | None = None  # its engine's name for its model, if we chose that
    running: int = 0
    model: ServiceModel = field(default_factory=ServiceModel)
    down_until: float = 0.0
    failures: int = 0  # in a row
    restarts: int = 0
    false_starts: int = 0  # failed restarts in a row
    queue: int = 0
    parked: bool = False  # it takes no new calls: its pool has enough replicas (see elastic_replicas)
    doubt: RefusalProbe = field(default_factory=RefusalProbe)
    # For an engine of ours that has lost a call: has it ended, and will it be restarted?
    comes_back: Callable[[], Awaitable[bool]] | None = None
    _stays: dict[RequestId, EngineStay] = field(default_factory=dict)
    _worked: float = 0.0  # seconds of work, summed over the calls that were worked on
    _worked_at: float = 0.0
    # seconds and tokens, the last
    _prefixes: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)

    def up(self, now: float) -> bool:
        return self.upstream is not None and not self.parked and now >= self.down_until

    @property
    def isolation(self) -> Isolation:
        """How it keeps the prompts of clients apart. The embedded engine keeps none of several clients."""
        if self.traits.keeps_prefixes is None and self.upstream is not None:
            return self.upstream.isolation or Isolation.NONE
        return Isolation.SALT if self.traits.keeps_prefixes and self.traits.reads_tags else Isolation.NONE

    @property
    def starts(self) -> bool:
        """Would it begin one more call at once, as far as the gateway can see?"""
        return self.running < self.slots

    @property
    def free(self) -> int:
        """How many more calls can be admitted."""
        return max(0, self.slots + self.queue - self.running)

    def enter(self, id_: RequestId, now: float) -> None:
        """A call is admitted."""
        self._work(now)
        self.running += 1
        self._stays[id_] = EngineStay(now, self._worked, self.running > self.slots)

    def leave(self, id_: RequestId, now: float) -> None:
        self._work(now)
        self.running -= 1
        self._stays.pop(id_, None)

    def beside(self, id_: RequestId, now: float) -> float:
        """The mean number of calls that were worked on during this call's stay, including itself."""
        self._work(now)
        stay = self._stays.get(id_)
        if stay is None or now <= stay.began:
            return max(1.0, min(self.running, self.slots))
        return max(1.0, (self._worked - stay.worked) / (now - stay.began))

    def waited(self, id_: RequestId) -> bool:
        """Did this call wait inside the engine, as far as the gateway can see?"""
        stay = self._stays.get(id_)
        return stay is not None and stay.waited

    def _work(self, now: float) -> None:
        self._worked += min(self.running, self.slots) * max(0.0, now - self._worked_at)
        self._worked_at = now

    def read(self, cached_as: str, took_s: float, tokens: int) -> bool:
        """Note an answered call. True if an earlier one had the same prompt, so that this one's may have come from
        the engine's cache."""
        before = cached_as in self._prefixes
        self._prefixes[cached_as] = (took_s, max(1, tokens))
        self._prefixes.move_to_end(cached_as)
        while len(self._prefixes) > _AFFINITIES:
            self._prefixes.popitem(last=False)
        return before and self.traits.keeps_prefixes is not False

    def may_do(self, call: RequestView, cached_as: str | None, needs: Needs, now: float) -> bool:
        """Admit a call that the policy would refuse on an estimate? Only into a free slot, so that it delays nobody:
        if the evidence allows that the call is in time, and now and then as a test."""
        if self.running >= self.slots:
            return False
        last = None if cached_as is None else self._prefixes.get(cached_as)
        prompt = 1 if last is not None and self.traits.keeps_prefixes else call.to_prefill
        least_s = min(needs.own_s, self.model.least_s(prompt, needs.tokens, self.running + 1.0))
        if last is not None and self.traits.keeps_prefixes is None:  # with or without a cache
            least_s = min(least_s, last[0] * max(1.0, needs.tokens / last[1]))
        return self.doubt.should_admit(least_s + needs.later_s, needs.due - now, now)

    def capacity(self, leaving: int = 0) -> Capacity:
        """Its capacity, as a policy sees it; none while its process is restarted. `leaving`: running calls that have
        been interrupted and will leave."""
        return Capacity(
            slots=0 if self.upstream is None else self.slots,
            running=max(0, self.running - leaving),
            step=self.model.step,
            can_preempt=self.traits.can_resume,
            can_cancel=True,
            queue=0 if self.upstream is None else self.queue,
        )

    def lost(self, now: float) -> None:
        """It failed a call: use it no more for a while, longer each time in a row."""
        self.failures += 1
        self.down_until = now + min(_BACKOFF_CAP_S, _BACKOFF_S * 2 ** (self.failures - 1))

    def answered(self, seen: ServiceSample | None) -> None:
        """It gave a whole answer. `seen`: evidence of its speed, if any."""
        self.failures, self.down_until = 0, 0.0
        if seen is not None:
            self.model.observe(seen)

    def expected_s(self, call: RequestView) -> float:
        """Expected seconds until the call's answer is complete, if it starts here now."""
        step = self.model.step
        tokens = call.sketch.quantile(0.5, call.generated) if call.sketch else _UNKNOWN_TOKENS
        rounds = 1 + self.running // self.slots  # when all slots are taken, a call waits inside for an answer to end
        beside = min(self.running + 1, self.slots)
        context = (call.prompt_tokens + call.generated) * beside
        return step.step_ms(beside, context) * tokens * rounds / 1000 + before_token_s(step, call.to_prefill)


class Replicas:
    """All replicas of a gateway. Raises ValueError if there are none."""

    def __init__(self, replicas: Sequence[Replica], *, seed: int = 0) -> None:
        if not replicas:
            raise ValueError("a gateway needs an engine")
        self.all = tuple(replicas)
        self._rng = random.Random(seed)
        self._homes: OrderedDict[str, int] = OrderedDict()

    @property
    def llama_cpp(self) -> bool:
        """True if a call may go to a llama.cpp."""
        return any(r.traits.llama_cpp for r in self.all)

    @property
    def most_characters(self) -> int | None:
        """A longer prompt fits none of them; None if that is unknown."""
        each = [r.traits.most_characters for r in self.all]
        known = [most for most in each if most is not None]
        return max(known) if len(known) == len(each) else None

    def usable(self, now: float) -> list[Replica]:
        """The replicas that are up; if there are none, those that have a process: their error is then the answer."""
        there = [r for r in self.all if not r.parked]
        return [r for r in there if r.up(now)] or [r for r in there if r.upstream is not None]

    def able(self, now: float, avoid: frozenset[int]) -> list[Replica]:
        """The replicas that a call which those in `avoid` have failed may wait for; never empty. A replica that is
        restarting counts if no other is up that has not failed the call."""
        usable = self.usable(now)
        others = [r for r in usable if r.index not in avoid]
        return others or self._away(avoid) or usable or [r for r in self.all if not r.parked]

    def capacity(self, now: float, *, leaving: Mapping[int, int] = MappingProxyType({})) -> Capacity:
        """All replicas that are up as one engine, in which each slot is as fast as the fastest replica's: a refusal
        must rest on what is possible, not on what is likely. `leaving`: by replica, interrupted calls that will
        leave."""
        here = self.usable(now)
        fastest, slots = self.fastest(now), sum(r.slots for r in here)
        return Capacity(
            slots=slots,
            running=max(0, sum(r.running - leaving.get(r.index, 0) for r in here)),
            step=aggregate_engines(fastest.model.step, max(1.0, slots / max(1, fastest.slots))),
            can_preempt=bool(here) and all(r.traits.can_resume for r in here),
            can_cancel=True,
            queue=sum(r.queue for r in here),
        )

    def fastest(self, now: float) -> Replica:
        """The fastest replica of those that are up, else of all."""
        return min(self.usable(now) or self.all, key=lambda r: r.model.step.step_ms(1, 0))

    def place(self, call: RequestView, now: float, affinity: str | None, avoid: frozenset[int]) -> Replica | None:
        """A replica with a free slot: the one of the call's siblings or prefix if that is free, else the better of a
        few. None if there is none. A call does not wait inside the engine of its prefix while another would begin it.

        avoid: replicas that have failed this call. They serve only where no other does or will: a replica that is
        restarting is waited for until its start has failed.
        """
        free = [r for r in self.usable(now) if r.free]
        if not (others := [r for r in free if r.index not in avoid]):
            others = [] if self._away(avoid) else free
        free = others
        if not free:
            return None
        home = self.home(affinity)
        chosen = home if home in free and (home.starts or not any(r.starts for r in free)) else None
        if chosen is None:
            some = free if len(free) <= _K else self._rng.sample(free, _K)
            chosen = min(some, key=lambda r: (r.expected_s(call), r.running / r.slots, r.index))
        if affinity:
            self.remember(affinity, chosen)
        return chosen

    def _away(self, avoid: frozenset[int]) -> list[Replica]:
        """The replicas that are restarting and have not failed the call."""
        return [r for r in self.others(avoid) if r.upstream is None and r.comes_back is not None]

    def others(self, avoid: frozenset[int]) -> list[Replica]:
        """The replicas that may yet do a call which those in `avoid` have failed."""
        hoped = (r for r in self.all if not r.parked and (r.upstream is not None or not r.false_starts))
        return [r for r in hoped if r.index not in avoid]

    def home(self, affinity: str | None) -> Replica | None:
        """The replica that calls with this affinity went to, if any did."""
        index = self._homes.get(affinity) if affinity else None
        return None if index is None else self.all[index]

    def room(self, now: float) -> bool:
        """Does any of them have a free slot?"""
        return any(r.free for r in self.usable(now))

    def remember(self, affinity: str, home: Replica) -> None:
        """Send calls with this affinity there from now on."""
        self._homes[affinity] = home.index
        self._homes.move_to_end(affinity)
        while len(self._homes) > _AFFINITIES:
            self._homes.popitem(last=False)

    def wakes_at(self, now: float) -> float | None:
        """When a replica that is down may be tried again."""
        return min(
            (r.down_until for r in self.all if not r.parked and r.upstream is not None and r.down_until > now),
            default=None,
        )


_QUICK = 1.3  # faster than expected by this factor: the prompt may have come from a cache
_SLACK = 1.1  # an engine's account of its time may exceed the time measured here by this factor


def service_of(
    call: Call, at: Replica, details: Details, now: float, *, tokens: int | None, pieces: int
) -> ServiceSample | None:
    """The call's times as evidence for the engine's speed.

    tokens: of the answer; None if nobody counted them. pieces: of the answer that were seen to come.

    None if the call tells nothing: it was preempted, or the length of its answer is unknown.
    """
    if call.entered is None or call.track.preemptions or not tokens:
        return None
    end = now if call.last_token is None else call.last_token
    total_s, beside = end - call.entered, at.beside(call.id, now)
    again = call.cached_as is not None and at.read(call.cached_as, total_s, tokens)
    own = details.times
    if own is not None and own.prompt_s + own.decode_s <= _SLACK * total_s:
        return ServiceSample(own.prompt_tokens, own.tokens, None, own.decode_s, beside, total_s, own.prompt_s)
    prompt: int | None = call.prompt_tokens
    first_s = None if call.first_token is None else call.first_token - call.entered
    if details.cached is not None:
        prompt = max(1, call.prompt_tokens - details.cached)
    elif again and call.affinity is not None and _quick(at, call.prompt_tokens, tokens, beside, first_s, total_s):
        prompt = None
    waited = at.waited(call.id)
    if first_s is None or arrived_at_once(first_s, total_s - first_s, tokens, pieces):
        return ServiceSample(None if waited else prompt, tokens, None, None, beside, total_s)
    return ServiceSample(None if waited else prompt, tokens, first_s, total_s - first_s, beside, total_s)


def _quick(at: Replica, prompt: int, tokens: int, beside: float, first_s: float | None, total_s: float) -> bool:
    """Was it so much faster than expected that its prompt may have come from the engine's cache?"""
    took_s, made = (total_s, tokens) if first_s is None else (first_s, 1)
    return _QUICK * took_s < at.model.expected_s(prompt, made, beside)


def echoes(body: Mapping[str, object]) -> bool:
    """Does the answer begin with the prompt, so that not all of it is generated?"""
    return bool(body.get("echo"))


def salted(body: Mapping[str, object], to: Replica, client: str) -> dict[str, object]:
    """The body for an engine, so that a client finds only its own prompts, sessions and media there."""
    return with_own_cache(apart(body, client), to.isolation, client)
