"""The SLO tracker: what was promised to each request, what was delivered, what can still be met.

It follows a request through its phases at the grain of a token. Every second between arrival and end belongs to
exactly one phase, so the ledger adds up: the budget went to the queue, to prefill, to decoding, to standing aside
(paused), or to a preemption and the prefill that it cost. Pure: the host hands in events with their times. Of whole
workflows the gateway keeps the sum (`gateway/compounds.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ramify.serving.policy.goodput import is_latency
from ramify.serving.policy.types import RequestView


class Phase(StrEnum):
    QUEUE = "queue"  # not started
    PREFILL = "prefill"  # started, no token yet
    DECODE = "decode"
    PAUSED = "paused"  # holds its KV, gets no steps
    PREEMPTED = "preempted"  # lost its KV: waits again, and until its next token prefills again
    ENDED = "ended"


# What may follow what. An event that is not in this table is a mistake of the host's.
_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUE: frozenset({Phase.PREFILL, Phase.ENDED}),
    Phase.PREFILL: frozenset({Phase.DECODE, Phase.PAUSED, Phase.PREEMPTED, Phase.ENDED}),
    Phase.DECODE: frozenset({Phase.PAUSED, Phase.PREEMPTED, Phase.ENDED}),
    Phase.PAUSED: frozenset({Phase.PREFILL, Phase.DECODE, Phase.PREEMPTED, Phase.ENDED}),
    Phase.PREEMPTED: frozenset({Phase.DECODE, Phase.PAUSED, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}


class OutOfOrder(ValueError):
    """An event that cannot follow what went before, or a time before the last one."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Where the time went, in seconds. Adds up to the time from arrival to end."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    paused_s: float = 0.0
    preempted_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.queue_s + self.prefill_s + self.decode_s + self.paused_s + self.preempted_s


@dataclass(slots=True)
class RequestTrack:
    """One request: its promise (`view`), and what came of it so far."""

    view: RequestView
    phase: Phase = Phase.QUEUE
    tokens: int = 0
    on_time: int = 0  # tokens that came by their own due time; all, where no token has one
    first_token_at: float | None = None
    ended_at: float | None = None
    completed: bool = False  # ended with its whole answer
    preemptions: int = 0
    _since: float = field(init=False)
    _spent: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))

    def __post_init__(self) -> None:
        self._since = self.view.arrived

    def token_due(self, index: int) -> float | None:
        """When token `index` (from 0) is due: TTFT + i · TBT (thesis, chapter 3). None without such an SLO."""
        view = self.view
        if view.ttft is None and view.tbt is None:
            return None
        if view.tbt is None:
            return view.ttft if index == 0 else None
        begin = view.ttft if view.ttft is not None else self.first_token_at
        return None if begin is None else begin + index * view.tbt

    def ahead(self, now: float) -> int:
        """Tokens delivered beyond what is due by now; negative when behind. 0 without a time between tokens."""
        tbt, begin = self.view.tbt, self.token_due(0)
        if tbt is None or begin is None:
            return 0
        due = 0 if now < begin else int((now - begin) / tbt) + 1
        return self.tokens - due

    def move(self, phase: Phase, now: float) -> None:
        """It is in this phase from now on."""
        if phase not in _NEXT[self.phase]:
            raise OutOfOrder(f"request {self.view.id}: {phase} cannot follow {self.phase}")
        self._pass(now)
        self.preemptions += phase is Phase.PREEMPTED
        self.phase = phase
        if phase is Phase.ENDED:
            self.ended_at = now

    def token(self, now: float, count: int = 1) -> None:
        """`count` tokens came now. The first after a start or a preemption begins decoding."""
        if self.phase in (Phase.PREFILL, Phase.PREEMPTED):
            self.move(Phase.DECODE, now)
        elif self.phase is not Phase.DECODE and self.phase is not Phase.PAUSED:  # one may be in flight at a pause
            raise OutOfOrder(f"request {self.view.id}: a token while it is in {self.phase}")
        if self.first_token_at is None:
            self.first_token_at = now
        for index in range(self.tokens, self.tokens + count):
            due = self.token_due(index)
            self.on_time += due is None or now <= due
        self.tokens += count

    def spent(self, now: float) -> Spent:
        """The ledger, up to now or to its end."""
        spent = dict(self._spent)
        if self.phase is not Phase.ENDED:
            spent[self.phase] += max(0.0, now - self._since)
        return Spent(
            spent[Phase.QUEUE],
            spent[Phase.PREFILL],
            spent[Phase.DECODE],
            spent[Phase.PAUSED],
            spent[Phase.PREEMPTED],
        )

    def met(self) -> bool | None:
        """Was all that was promised delivered? None while it runs, and for what was promised nothing."""
        view = self.view
        promised = (view.deadline, view.ttft, view.tbt)
        if self.ended_at is None or all(p is None for p in promised):
            return None
        in_time = view.deadline is None or self.ended_at <= view.deadline
        begun = view.ttft is None or (self.first_token_at is not None and self.first_token_at <= view.ttft)
        return self.completed and in_time and begun and self.on_time == self.tokens

    def goodput(self) -> int:
        """Tokens that count (thesis, chapter 3): of a latency-sensitive request those on time; of another, prompt and
        answer if it was completed by its deadline, else none."""
        if is_latency(self.view):
            return self.on_time
        late = self.view.deadline is not None and (self.ended_at is None or self.ended_at > self.view.deadline)
        return 0 if late or not self.completed else self.view.prompt_tokens + self.tokens

    def feasible(self, now: float, tokens_left: float, token_s: float, before_s: float = 0.0) -> bool:
        """Can the promise still be kept, with so much to do: `before_s` until its next token, then one each
        `token_s`? What has been missed cannot."""
        if self.ended_at is not None:
            return self.met() is not False
        view = self.view
        if self.on_time < self.tokens:
            return False
        if view.ttft is not None and self.first_token_at is None and now + before_s > view.ttft:
            return False
        due = self.token_due(self.tokens)
        if self.tokens and due is not None and now + before_s > due:
            return False
        return view.deadline is None or now + before_s + tokens_left * token_s <= view.deadline

    def _pass(self, now: float) -> None:
        if now < self._since:
            raise OutOfOrder(f"request {self.view.id}: {now} is before {self._since}")
        self._spent[self.phase] += now - self._since
        self._since = now
