"""SLO tracking: what was promised to a request and to a workflow run, what was delivered, what can still be met.

`RequestTrack` follows one request through its phases, token by token. Every second between arrival and end belongs to
exactly one phase, so that the ledger adds up: time in the queue, in prefill, in decoding, paused, or lost to a
preemption and the prefill that it cost. `Compound` sums up the calls of one workflow run. Both are pure: the gateway
passes in events with their times.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from operator import add

from ramify.serving.policy.types import CompoundView, RequestView, StageEstimate
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.qoe import Reading


class Phase(StrEnum):
    QUEUE = "queue"  # not started
    PREFILL = "prefill"  # started, no token yet
    DECODE = "decode"
    PAUSED = "paused"  # keeps its KV, gets no steps
    PREEMPTED = "preempted"  # lost its KV: waits again, then prefills again until its next token
    ENDED = "ended"


# Which phase may follow which. Any other event is a bug of the caller.
_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUE: frozenset({Phase.PREFILL, Phase.ENDED}),
    Phase.PREFILL: frozenset({Phase.DECODE, Phase.PAUSED, Phase.PREEMPTED, Phase.ENDED}),
    Phase.DECODE: frozenset({Phase.PAUSED, Phase.PREEMPTED, Phase.ENDED}),
    Phase.PAUSED: frozenset({Phase.PREFILL, Phase.DECODE, Phase.PREEMPTED, Phase.ENDED}),
    Phase.PREEMPTED: frozenset({Phase.DECODE, Phase.PAUSED, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}


class OutOfOrder(ValueError):
    """An event that cannot follow the events before it, or a time before the last one."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Where the time went, in seconds. The sum is the time from arrival to end."""

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
    """One request: its promise (`view`), and what has come of it so far."""

    view: RequestView
    phase: Phase = Phase.QUEUE
    tokens: int = 0
    on_time: int = 0  # tokens that came by their due time; all of them, where no token has one
    first_token_at: float | None = None
    ended_at: float | None = None
    completed: bool = False  # ended with its whole answer
    preemptions: int = 0
    reading: Reading | None = field(init=False)  # of a stream
    _since: float = field(init=False)
    _spent: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))

    def __post_init__(self) -> None:
        self._since = self.view.arrived
        self.reading = self.view.reading

    def token_due(self, index: int) -> float | None:
        """When token `index` (from 0) is due: TTFT + index · TBT (thesis, chapter 3). None without such a promise."""
        view = self.view
        if view.ttft is None and view.tbt is None:
            return None
        if view.tbt is None:
            return view.ttft if index == 0 else None
        begin = view.ttft if view.ttft is not None else self.first_token_at
        return None if begin is None else begin + index * view.tbt

    def move(self, phase: Phase, now: float) -> None:
        """Enter `phase` at `now`. Raises OutOfOrder."""
        if phase not in _NEXT[self.phase]:
            raise OutOfOrder(f"request {self.view.id}: {phase} cannot follow {self.phase}")
        self._pass(now)
        self.preemptions += phase is Phase.PREEMPTED
        self.phase = phase
        if phase is Phase.ENDED:
            self.ended_at = now

    def token(self, now: float, count: int = 1, *, thought: bool = False, read: int | None = None) -> None:
        """Count `count` tokens that came now. The first one after a start or a preemption begins decoding.
        Nobody reads a thought. `read`: so many tokens to read, if that is another number.
        """
        if self.phase in (Phase.PREFILL, Phase.PREEMPTED):
            self.move(Phase.DECODE, now)
        elif self.phase is not Phase.DECODE and self.phase is not Phase.PAUSED:  # a token may be in flight at a pause
            raise OutOfOrder(f"request {self.view.id}: a token while it is in {self.phase}")
        if self.first_token_at is None:
            self.first_token_at = now
        for index in range(self.tokens, self.tokens + count):
            due = self.token_due(index)
            self.on_time += due is None or now <= due
        self.tokens += count
        if self.reading is not None and not thought:
            self.reading = self.reading.delivered(now, count if read is None else read)

    def whole(self, now: float, tokens: int) -> None:
        """An answer of so many tokens came in one piece, when it was complete."""
        if self.reading is not None:
            self.reading = self.reading.delivered(now, tokens)

    def qoe(self, now: float) -> float | None:
        """The quality of experience of a stream, 0 to 1: of its whole answer, or until `now`; None for others."""
        if self.reading is None:
            return None
        return (
            self.reading.qoe()
            if self.completed
            else self.reading.qoe_at(now if self.ended_at is None else self.ended_at)
        )

    def spent(self, now: float) -> Spent:
        """The ledger, up to now or to the end."""
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
        """Was everything delivered that was promised? None while it runs, and where nothing was promised."""
        view = self.view
        promised = (view.deadline, view.ttft, view.tbt)
        if self.ended_at is None or all(p is None for p in promised):
            return None
        in_time = view.deadline is None or self.ended_at <= view.deadline
        begun = view.ttft is None or (self.first_token_at is not None and self.first_token_at <= view.ttft)
        return self.completed and in_time and begun and self.on_time == self.tokens

    def feasible(self, now: float, tokens_left: float, token_s: float, before_s: float = 0.0) -> bool:
        """Can the promise still be kept, with `before_s` seconds until the next token and `token_s` for each token
        after it? A promise that was already broken cannot."""
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


_NOTHING = Spent()
_PLAIN = SLOTags()
MOST_STAGES = 256  # the most that the tag `plan_rest` can hold


@dataclass(slots=True)
class Compound:
    """One workflow run. Its deadline counts from the first call seen, and stays, whatever later calls say."""

    id: str
    first_at: float
    deadline: float | None = None
    calls: int = 0
    open: int = 0
    done: int = 0
    spent: Spent = _NOTHING  # by its calls that ended: more than wall time if they ran in parallel
    ended_at: float | None = None  # when its last call so far ended
    ended_well: bool = False  # that call gave its whole answer, or was cancelled because nobody needed it
    ended_surely: bool = False  # the same, and its client was there to see it
    recorded: bool = False  # as a pattern: later calls are no part of it
    latest: int = -1  # the last stage of which a call has come
    stage: CompoundView | None = None  # shared by all calls of its stage
    matched: int = -1  # the stage for which history was last asked
    expected: tuple[StageEstimate, ...] = ()  # the stages after `matched`, by history
    dues: dict[int, float] = field(default_factory=dict)  # by stage: when its share of the deadline ends
    _answered: bool = False  # at least one call of the latest stage has its answer
    qoe_sum: float = 0.0  # of its streams that have ended,
    streams: int = 0  # which are so many
    _said: int = 0  # number of stages, if a call said so
    _latest_calls: int = 0  # calls of the latest stage that have come,
    _latest_width: int = 1  # of so many,
    _latest_done: int = 0  # and how many have their whole answer
    _joined: dict[str, int] = field(default_factory=dict)  # whole answers by fork group
    _last_calls: int = 0  # calls of the last stage that have come,
    _last_width: int = 1  # of so many

    @property
    def last_seen(self) -> bool:
        """True once all calls of the last stage have come."""
        return self._last_calls >= self._last_width

    def join(self, tags: SLOTags) -> SLOTags:
        """Count a call that comes; returns its tags with a stage.

        A call that does not say its stage belongs to the latest one while that has calls open or no answer yet
        (failed calls are repeated), else to the next. So a client that sends only a compound_id has stages, too.
        """
        if tags.compound_stage is None:
            stage = max(0, self.latest) if self.open or not self._answered else self.latest + 1
            most = MOST_STAGES if tags.compound_stages is None else tags.compound_stages
            tags = replace(tags, compound_stage=min(stage, most, MOST_STAGES))
        if (tags.compound_stage or 0) > self.latest:
            self.latest, self._answered = tags.compound_stage or 0, False
            self._latest_calls, self._latest_width, self._latest_done = 0, 1, 0
        if (tags.compound_stage or 0) == self.latest:
            self._latest_calls += 1
            self._latest_width = max(self._latest_width, tags.compound_width or 1)
        self._said = max(self._said, tags.compound_stages or 0)
        self.calls += 1
        self.open += 1
        if is_last(tags):
            self._last_calls += 1
            self._last_width = max(self._last_width, tags.compound_width or 1)
        return tags

    def left(
        self, now: float, *, whole: bool, off: bool = False, gone: bool = False,
        tags: SLOTags = _PLAIN, spent: Spent = _NOTHING, qoe: float | None = None,
    ) -> None:  # fmt: skip
        """Count a call that has ended.

        off: the workflow cancelled it. gone: its client left; in a fork group that has its answers, that means the
        same. Any other call that a client leaves stays undone.
        """
        self.spent = Spent(*map(add, astuple(self.spent), astuple(spent)))
        if qoe is not None:
            self.qoe_sum, self.streams = self.qoe_sum + qoe, self.streams + 1
        self.open -= 1
        self.done += whole
        self._latest_done += whole and (tags.compound_stage or 0) == self.latest
        group, need = tags.fork_group, tags.fork_need or tags.fork_size or 1
        if whole and group is not None and (group in self._joined or len(self._joined) < MOST_STAGES):
            self._joined[group] = self._joined.get(group, 0) + 1
        loser = gone and group is not None and self._joined.get(group, 0) >= need
        self.ended_at, self.ended_well, self.ended_surely = now, whole or off or loser, whole or off
        self._answered = self._answered or self.ended_well

    @property
    def qoe(self) -> float | None:
        """The mean quality of experience of its streams that have ended; None if it has none."""
        return self.qoe_sum / self.streams if self.streams else None

    @property
    def over(self) -> bool:
        """True once its last stage is done. False if that failed, since it may be repeated, or was cancelled
        whole."""
        return self.last_seen and not self.open and self.ended_well and self._latest_done > 0

    @property
    def finished(self) -> bool:
        """True if every announced call came and its client left none undone: if nothing more comes, this may have
        been all."""
        here = self.latest + 1 >= self._said and self._latest_calls >= self._latest_width
        return here and not self.open and self.ended_surely and self._latest_done > 0

    def met(self) -> bool | None:
        """Was the last stage complete before the deadline? None while it runs, or without a deadline."""
        if self.deadline is None or self.ended_at is None or self.open or not self.last_seen:
            return None
        return self.ended_well and self.ended_at <= self.deadline

    def feasible(self, now: float) -> bool | None:
        """Is there time left? None without a deadline, and once it is over."""
        return None if self.deadline is None or self.met() is not None else now < self.deadline

    def completed(self, tags: SLOTags, now: float) -> SLOTags:
        """Add what is known of its stage and the later ones to a call's tags, where the client said nothing."""
        stage = tags.compound_stage or 0
        if tags.plan_rest is None and self.matched == stage and self.expected:
            later = self.expected[:MOST_STAGES]
            rest = tuple(n for s in later for n in (s.calls, s.prefill, s.output_median, s.tool_s_before))
            tags = replace(tags, plan_rest=rest)
        due = self.dues.get(stage)
        if tags.compound_due_s is None and due is not None:
            tags = replace(tags, compound_due_s=max(0.0, due - now))
        return replace(tags, compound_last=1) if tags.compound_last is None and is_last(tags) else tags

    def view(self, tags: SLOTags) -> CompoundView:
        """This stage as the policy sees it. The same object for equal calls, so that a policy may cache results."""
        numbers = tags.plan_rest or ()
        rest = tuple(StageEstimate(*numbers[at : at + 4]) for at in range(0, len(numbers), 4))
        if tags.plan_rest is None and self.matched == (tags.compound_stage or 0):
            rest = self.expected
        view = CompoundView(
            self.id,
            tags.compound_stage or 0,
            tags.compound_stages,
            tags.compound_width or 1,
            is_last(tags),
            self.deadline,
            rest,
            self.dues.get(tags.compound_stage or 0),
        )
        if self.stage != view:
            self.stage = view
        return self.stage or view


def is_last(tags: SLOTags) -> bool:
    """Is the call of the workflow's last stage? It may say so, or its number of stages implies it."""
    if tags.compound_last is not None or tags.compound_stages is None:
        return tags.compound_last == 1
    return (tags.compound_stage or 0) + 1 >= tags.compound_stages
