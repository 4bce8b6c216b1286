"""One call: what it was promised, what was delivered, and the view of it that the policy sees."""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum

from ramify.serving.gateway.errors import Preempted
from ramify.serving.gateway.records.slo_tracker import Compound, Phase, RequestTrack
from ramify.serving.policy.cost_model import before_token_s
from ramify.serving.policy.types import GroupView, RequestId, RequestView, SloClass, StageEstimate, State, StepModel
from ramify.serving.protocol.length_sketch import LengthSketch
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.qoe import READING_TBT_S, Reading, usual_ttft_s
from ramify.serving.types import Ledger

_SHORT = 0.1  # the quantile of its length that counts as a short answer
_VIEW_EVERY, _STREAM_EVERY = 16, 4  # tokens after which the policy gets a new view; of a stream


class Outcome(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"  # by the policy: it could not be done in time
    FAILED = "failed"  # the engine gave no whole answer
    GONE = "gone"  # the client left
    ABORTED = "aborted"  # cancelled by its workflow, which does not need it any more


@dataclass(slots=True)
class Call:
    """One call at the gateway; times are on the gateway's clock, in seconds.

    With `slo_think_s`, the whole of the thoughts is due by a time, and each token of the answer after that.
    """

    id: RequestId
    path: str
    tags: SLOTags
    arrived: float
    arrived_unix: float
    deadline: float | None  # the earlier of its own and its compound's
    compound: Compound | None
    prompt_tokens: int = 0  # estimated by the gateway, until the engine has counted
    sketch: LengthSketch | None = None
    max_tokens: int | None = None  # where its answer is cut
    predicted: bool = False  # the sketch comes from the analyzer
    cut: bool = False  # the answer ended at that limit
    affinity: str | None = None  # see admission.WaitingCall, also for the next three
    cached_as: str | None = None
    resumable: bool = False
    client: str = ""  # whose it is, where several clients have keys of their own
    avoid: frozenset[int] = frozenset()
    replica: int = 0
    attempts: int = 0
    lost: int = 0  # engines that failed with it inside
    stood_still: int = 0  # those of them whose loop was stuck
    outcome: Outcome = Outcome.WAITING
    admitted: float | None = None  # for the first time
    entered: float | None = None  # into its present slot
    first_token: float | None = None
    first_answer: float | None = None  # the first token that is not a thought
    last_token: float | None = None
    ended: float | None = None
    chunks: int = 0
    thoughts: int = 0
    late_chunks: int = 0
    recomputed: int = 0  # tokens prefilled again after preemptions
    task: asyncio.Task[None] | None = None
    why: Exception | None = None  # of an interruption
    _view: RequestView | None = None
    track: RequestTrack = field(init=False)  # its phases and ledger

    def __post_init__(self) -> None:
        self._view = self._new_view(self._reader())
        self.track = RequestTrack(self._view)

    def view(self) -> RequestView:
        """The policy's view. It stays the same object until something that matters has changed."""
        if self._view is None:
            self._view = self._new_view(self.track.reading)
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
        """A replica works on it from `now` on."""
        if self.track.phase is Phase.QUEUE:
            self.track.move(Phase.PREFILL, now)
        elif self.track.phase is Phase.PREEMPTED:
            self.recomputed += self.prompt_tokens + self.chunks
        self.admitted = now if self.admitted is None else self.admitted
        self.entered, self.replica = now, replica
        self.attempts += 1
        self.outcome, self._view = Outcome.RUNNING, None

    def leave(self, now: float) -> None:
        """It holds no slot any more, for good or until it is admitted again.

        Without a token so far it starts anew, and has waited since its arrival.
        """
        if self.ended is None:
            if self.chunks:
                self.track.move(Phase.PREEMPTED, now)
            else:
                self.track = RequestTrack(self.track.view)
            self.entered, self._view, self.outcome = None, None, Outcome.WAITING

    def predict(self, sketch: LengthSketch) -> None:
        """Take a new prediction of its length from the analyzer."""
        self.sketch, self.predicted, self._view = sketch, True, None

    def expect(self, rest: tuple[StageEstimate, ...], share: float | None) -> None:
        """Take what history says about its workflow: the later stages, and this stage's share φ of the deadline."""
        assert self.compound is not None
        stage, deadline = self.tags.compound_stage or 0, self.compound.deadline
        self.compound.matched, self.compound.expected = stage, rest
        if share is not None and deadline is not None:
            due = self.compound.first_at + share * (deadline - self.compound.first_at)
            self.compound.dues.setdefault(stage, due)
        self._view = None

    def interrupt(self, why: Exception) -> None:
        """Make it leave its slot, or stop waiting for one. A final reason wins: a call that was preempted and is then
        cancelled does not wait again, and the other way round."""
        leaving = self.why is not None
        if not leaving or isinstance(self.why, Preempted):
            self.why = why
        if self.task is not None and not leaving:
            self.task.cancel()

    def token(self, now: float, *, thought: bool = False, read: int = 1) -> None:
        """Count a piece of the answer that goes out. With `slo_tbt_s`, the n-th is due n steps after the first.

        read: tokens to read in it. An engine may put several into one event.
        """
        self.track.token(now, thought=thought, read=read)
        if self.first_token is None:
            self.first_token, self._view = now, None
        if thought:
            self.thoughts += 1
        elif self.first_answer is None:
            self.first_answer, self._view = now, None  # from here on it is due token by token
        if self.tags.slo_tbt_s is not None and not (thought and self.tags.slo_think_s is not None):
            self.late_chunks += now > self._timeline() + (self.chunks - self._off_timeline) * self.tags.slo_tbt_s
        self.chunks += 1
        self.last_token = now
        if self.chunks % (_VIEW_EVERY if self.track.reading is None else _STREAM_EVERY) == 0:
            self._view = None

    def met(self) -> bool | None:
        """Was everything delivered as promised? None while it runs, for best effort, and for streams without a
        deadline, which `Ledger.qoe` judges."""
        ttft, think = self.tags.slo_ttft_s, self.tags.slo_think_s
        if self.ended is None or not self._promised:
            return None
        if self.kind is SloClass.STREAM:
            return self.outcome is Outcome.DONE and self.deadline is not None and self.ended <= self.deadline
        in_time = self.deadline is None or self.ended <= self.deadline
        begun = ttft is None or (self.first_token is not None and self.first_token <= self.arrived + ttft)
        thought = think is None or (self.first_answer is not None and self.first_answer <= self.arrived + think)
        return self.outcome is Outcome.DONE and in_time and begun and thought and not self.late_chunks

    def feasible(self, now: float, step: StepModel) -> bool | None:
        """Can the promise still be kept, if the answer is short (10 % quantile) and has the engine to itself?

        None where nothing was promised, and once the call has ended.
        """
        if self.ended is not None or not self._promised:
            return None
        think = self.tags.slo_think_s
        thought_late = think is not None and (self.first_answer or 0.0) > self.arrived + think
        if self.kind is not SloClass.STREAM and (self.late_chunks or thought_late):
            return False
        left = 1.0 if self.sketch is None else self.sketch.quantile(_SHORT, self.chunks) - self.chunks
        if self.max_tokens is not None:
            left = min(left, self.max_tokens - self.chunks)
        token_s = step.step_ms(1, self.prompt_tokens + self.chunks) / 1000
        before_s = 0.0 if self.chunks else before_token_s(step, self.prompt_tokens)
        track = copy(self.track)
        track.view = self.view()  # while it thinks, a call has other promises than in its answer
        return track.feasible(now, max(1.0, left), token_s, before_s)

    @property
    def _promised(self) -> bool:
        tags = self.tags
        if self.kind is SloClass.STREAM:
            return self.deadline is not None
        limits = (self.deadline, tags.slo_ttft_s, tags.slo_tbt_s, tags.slo_think_s)
        return any(limit is not None for limit in limits)

    def ledger(self, now: float) -> Ledger:
        """Where the time went. For a call that ended without a token, the first token counts as its end."""
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
            qoe=self.track.qoe(end),
        )

    def _reader(self) -> Reading | None:
        """The reader of a stream. The answer begins when the thoughts are due to end, if that is promised."""
        tags = self.tags
        if tags.slo_class != SloClass.STREAM:
            return None
        begin_s = tags.slo_ttft_s if tags.slo_think_s is None else tags.slo_think_s
        begin_s = usual_ttft_s(self.prompt_tokens) if begin_s is None else begin_s
        return Reading(self.arrived + begin_s, tags.slo_tbt_s or READING_TBT_S)

    @property
    def _off_timeline(self) -> int:
        """Tokens without a due time of their own: thoughts that are due as a whole."""
        return self.thoughts if self.tags.slo_think_s is not None else 0

    def _timeline(self) -> float:
        """When the first token with a due time is due, or came."""
        if self.tags.slo_think_s is not None:
            assert self.first_answer is not None
            return self.first_answer
        assert self.first_token is not None
        return self.first_token if self.tags.slo_ttft_s is None else self.arrived + self.tags.slo_ttft_s

    def _new_view(self, reading: Reading | None) -> RequestView:
        tags = self.tags
        deadline, ttft = self.deadline, None if tags.slo_ttft_s is None else self.arrived + tags.slo_ttft_s
        tbt = tags.slo_tbt_s
        if tags.slo_think_s is not None and self.first_answer is None:
            by = self.arrived + tags.slo_think_s
            deadline, tbt = by if deadline is None else min(by, deadline), None
        elif tags.slo_think_s is not None and self.first_answer is not None and tbt is not None:
            # the policy counts from the first token, thoughts included
            ttft = self.first_answer - self.thoughts * tbt
        if reading is not None:
            ttft = tbt = None
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
            group=GroupView.of(tags),
            replica=self.replica,
            max_tokens=self.max_tokens,
            reading=reading,
            client=self.client,
        )
