"""One call on the gateway's clock: what was promised, what was delivered, and what the policy sees of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ramify.serving.gateway.admission import Preempted
from ramify.serving.policy.types import (
    CompoundView,
    GroupView,
    RequestId,
    RequestView,
    SloClass,
    StageEstimate,
    State,
)
from ramify.serving.sketch import LengthSketch
from ramify.serving.tags import SLOTags
from ramify.serving.tracker import Phase, RequestTrack
from ramify.serving.types import Ledger

_VIEW_EVERY = 16  # tokens after which the policy is shown a new view
_MOST_STAGES = 256  # that the tag `plan_rest` holds


class Outcome(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"  # by the policy: it could not be done in time
    FAILED = "failed"  # the engine gave no whole answer
    GONE = "gone"  # the client left
    ABORTED = "aborted"  # its workflow needs it no longer, and said so


@dataclass(slots=True)
class Compound:
    """One workflow run's calls as one unit. Its deadline counts from the first call seen, whoever repeats it."""

    id: str
    first_at: float
    deadline: float | None = None
    calls: int = 0
    open: int = 0
    done: int = 0
    ended_at: float | None = None  # when its last call so far ended
    last_seen: bool = False  # a call of the last stage has come
    stage: CompoundView | None = None  # what all calls of its stage share
    matched: int = -1  # the stage at which history was asked last
    expected: tuple[StageEstimate, ...] = ()  # after that stage, by history
    dues: dict[int, float] = field(default_factory=dict)  # by stage: when it is due by its share of the deadline

    def met(self) -> bool | None:
        """None while it runs or where it has no deadline; a compound is in time when its last stage was."""
        if self.deadline is None or self.ended_at is None or self.open or not self.last_seen:
            return None
        return self.ended_at <= self.deadline

    def completed(self, tags: SLOTags, now: float) -> SLOTags:
        """With what history says of its stage and the later ones, where the client said nothing."""
        stage = tags.compound_stage or 0
        if tags.plan_rest is None and self.matched == stage and self.expected:
            later = self.expected[:_MOST_STAGES]
            rest = tuple(n for s in later for n in (s.calls, s.prefill, s.output_median, s.tool_s_before))
            tags = replace(tags, plan_rest=rest)
        due = self.dues.get(stage)
        if tags.compound_due_s is None and due is not None:
            tags = replace(tags, compound_due_s=max(0.0, due - now))
        return tags

    def view(self, tags: SLOTags) -> CompoundView:
        """This stage of it. The same object for equal calls, so that a policy may keep what it worked out."""
        numbers = tags.plan_rest or ()
        rest = tuple(StageEstimate(*numbers[at : at + 4]) for at in range(0, len(numbers), 4))
        if tags.plan_rest is None and self.matched == (tags.compound_stage or 0):
            rest = self.expected
        view = CompoundView(
            self.id,
            tags.compound_stage or 0,
            tags.compound_stages,
            tags.compound_width or 1,
            tags.compound_last == 1,
            self.deadline,
            rest,
            self.dues.get(tags.compound_stage or 0),
        )
        if self.stage != view:
            self.stage = view
        return self.stage or view


@dataclass(slots=True)
class Call:
    """One call. While a model thinks it is due by a time; once it answers, token by token (`slo_think_s`)."""

    id: RequestId
    path: str
    tags: SLOTags
    arrived: float
    arrived_unix: float
    deadline: float | None  # the earliest of its own and its compound's
    compound: Compound | None
    prompt_tokens: int = 0  # the gateway's guess, until the engine has counted
    sketch: LengthSketch | None = None
    max_tokens: int | None = None  # where its answer is cut
    predicted: bool = False  # the sketch is the analyzer's
    cut: bool = False  # it ended there
    affinity: str | None = None
    resumable: bool = False
    avoid: frozenset[int] = frozenset()
    replica: int = 0
    attempts: int = 0
    outcome: Outcome = Outcome.WAITING
    admitted: float | None = None  # the first time
    entered: float | None = None  # the engine, this time
    first_token: float | None = None
    first_answer: float | None = None  # the first token that is no thought
    last_token: float | None = None
    ended: float | None = None
    chunks: int = 0
    thoughts: int = 0
    late_chunks: int = 0
    recomputed: int = 0  # tokens prefilled again after preemptions
    task: asyncio.Task[None] | None = None
    why: Exception | None = None
    _view: RequestView | None = None
    track: RequestTrack = field(init=False)  # where its time goes

    def __post_init__(self) -> None:
        self.track = RequestTrack(self.view())

    def view(self) -> RequestView:
        """What the policy sees; the same object until something has changed that matters."""
        if self._view is None:
            self._view = self._new_view()
        return self._view

    @property
    def thinking(self) -> bool:
        return self.tags.slo_think_s is not None and self.first_answer is None

    @property
    def kind(self) -> SloClass:
        tags = self.tags
        if self.thinking:
            return SloClass.DEADLINE
        if tags.slo_class is not None:
            return SloClass(tags.slo_class)
        if self.compound:
            return SloClass.COMPOUND
        if tags.slo_think_s is not None:
            return SloClass.LATENCY
        if self.deadline is not None:
            return SloClass.DEADLINE
        timed = tags.slo_ttft_s is not None or tags.slo_tbt_s is not None
        return SloClass.LATENCY if timed else SloClass.BEST_EFFORT

    def enter(self, now: float, replica: int) -> None:
        """A replica works on it from now."""
        if self.track.phase is Phase.QUEUE:
            self.track.move(Phase.PREFILL, now)
        elif self.track.phase is Phase.PREEMPTED:
            self.recomputed += self.prompt_tokens + self.chunks
        self.admitted = now if self.admitted is None else self.admitted
        self.entered, self.replica = now, replica
        self.attempts += 1
        self.outcome, self._view = Outcome.RUNNING, None

    def leave(self, now: float) -> None:
        """It has no replica any more, for good or until it is let in again.

        One that is left without a token spends its time as before, in prefill: it begins anew on another replica.
        """
        if self.ended is None:
            if self.chunks:
                self.track.move(Phase.PREEMPTED, now)
            self.entered, self._view, self.outcome = None, None, Outcome.WAITING

    def predict(self, sketch: LengthSketch) -> None:
        """A new sketch of its length."""
        self.sketch, self.predicted, self._view = sketch, True, None

    def expect(self, rest: tuple[StageEstimate, ...], share: float | None) -> None:
        """What history says of its workflow: the later stages, and this one's share φ of the deadline."""
        assert self.compound is not None
        stage, deadline = self.tags.compound_stage or 0, self.compound.deadline
        self.compound.matched, self.compound.expected = stage, rest
        if share is not None and deadline is not None:
            due = self.compound.first_at + share * (deadline - self.compound.first_at)
            self.compound.dues.setdefault(stage, due)
        self._view = None

    def interrupt(self, why: Exception) -> None:
        """Make it leave its slot, or its wait for one. Where it is leaving already, what is final stands: a call that
        was put back and then called off does not wait again, nor the other way round."""
        leaving = self.why is not None
        if not leaving or isinstance(self.why, Preempted):
            self.why = why
        if self.task is not None and not leaving:
            self.task.cancel()

    def token(self, now: float, *, thought: bool = False) -> None:
        """A piece of the answer went out. With `slo_tbt_s`, the n-th is due n steps after the first was."""
        self.track.token(now)
        if self.first_token is None:
            self.first_token, self._view = now, None
        if thought:
            self.thoughts += 1
        elif self.first_answer is None:
            self.first_answer, self._view = now, None  # from here on it is of its other kind
        if self.tags.slo_tbt_s is not None and not (thought and self.tags.slo_think_s is not None):
            self.late_chunks += now > self._timeline() + (self.chunks - self._off_timeline) * self.tags.slo_tbt_s
        self.chunks += 1
        self.last_token = now
        if self.chunks % _VIEW_EVERY == 0:
            self._view = None

    def met(self) -> bool | None:
        """None while it runs and for best effort."""
        ttft, tbt, think = self.tags.slo_ttft_s, self.tags.slo_tbt_s, self.tags.slo_think_s
        if self.ended is None or (self.deadline is None and ttft is None and tbt is None and think is None):
            return None
        in_time = self.deadline is None or self.ended <= self.deadline
        begun = ttft is None or (self.first_token is not None and self.first_token <= self.arrived + ttft)
        thought = think is None or (self.first_answer is not None and self.first_answer <= self.arrived + think)
        return self.outcome is Outcome.DONE and in_time and begun and thought and not self.late_chunks

    def ledger(self, now: float) -> Ledger:
        """Where the time went. A call that ended without a token saw its first one at its end."""
        end = now if self.ended is None else self.ended
        first = end if self.first_token is None else self.first_token
        spent = self.track.spent(end)
        return Ledger(
            queue_s=spent.queue_s,
            first_token_s=first - self.arrived,
            total_s=end - self.arrived,
            deadline_s=None if self.deadline is None else self.deadline - self.arrived,
            met=self.met(),
            attempts=max(1, self.attempts),
            prefill_s=spent.prefill_s,
            decode_s=spent.decode_s,
            preempted_s=spent.preempted_s,
            thought_s=None if not self.thoughts or self.first_answer is None else self.first_answer - first,
            preemptions=self.track.preemptions,
            replica=self.replica,
        )

    @property
    def _off_timeline(self) -> int:
        """Tokens that no timeline counts: thoughts that are due as a whole."""
        return self.thoughts if self.tags.slo_think_s is not None else 0

    def _timeline(self) -> float:
        """When the first token of the timeline is due, or was there."""
        if self.tags.slo_think_s is not None:
            assert self.first_answer is not None
            return self.first_answer
        assert self.first_token is not None
        return self.first_token if self.tags.slo_ttft_s is None else self.arrived + self.tags.slo_ttft_s

    def _new_view(self) -> RequestView:
        tags = self.tags
        deadline, ttft = self.deadline, None if tags.slo_ttft_s is None else self.arrived + tags.slo_ttft_s
        tbt = tags.slo_tbt_s
        if tags.slo_think_s is not None and self.first_answer is None:
            by = self.arrived + tags.slo_think_s
            deadline, tbt = by if deadline is None else min(by, deadline), None
        elif tags.slo_think_s is not None and self.first_answer is not None and tbt is not None:
            ttft = self.first_answer - self.thoughts * tbt  # the policy counts from the first token of all
        running = self.entered is not None
        return RequestView(
            self.id,
            self.arrived,
            self.kind,
            deadline,
            ttft,
            tbt,
            None if tags.slo_waiting_s is None or self.admitted is not None else self.arrived + tags.slo_waiting_s,
            prompt_tokens=self.prompt_tokens,
            computed=self.prompt_tokens + self.chunks if running and self.chunks else 0,
            generated=self.chunks,
            sketch=self.sketch,
            weight=tags.goodput_weight or 1.0,
            state=State.RUNNING if running else State.PREEMPTED if self.chunks else State.WAITING,
            compound=None if self.compound is None else self.compound.view(tags),
            group=_group(tags),
            replica=self.replica,
            max_tokens=self.max_tokens,
        )


def _group(tags: SLOTags) -> GroupView | None:
    if tags.fork_group is None:
        return None
    size = tags.fork_size or 1
    return GroupView(tags.fork_group, size, tags.fork_need or size)
