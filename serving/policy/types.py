"""What a scheduling policy sees (`View`) and decides (`Verdict`). Plain data; all times are seconds on the host's
clock.

One policy object runs in three hosts: the gateway in front of any engine, vLLM's own scheduler, and replay. A host
keeps one `RequestView` for each request, and makes a new one only if something changed. So a policy may keep what
it computed for as long as the view is the same object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol, runtime_checkable

from ramify.serving.protocol.length_sketch import LengthSketch
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.qoe import Reading

RequestId = NewType("RequestId", int)


class State(StrEnum):
    WAITING = "waiting"  # never started
    RUNNING = "running"  # holds a slot and KV
    PAUSED = "paused"  # holds KV, no slot: it goes on where it stood
    PREEMPTED = "preempted"  # it started once and holds nothing now: it waits, and its tokens are computed again


class SloClass(StrEnum):
    LATENCY = "latency"  # tokens by a timeline: time to first token, then time between tokens
    STREAM = "stream"  # read as it comes: judged by the quality of experience, which is never all or nothing
    DEADLINE = "deadline"  # the whole answer by a time
    COMPOUND = "compound"  # part of a workflow that is due as a whole
    BEST_EFFORT = "best_effort"


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """A later stage of a compound request, by the compiler's plan or a matched pattern."""

    calls: float
    prefill: float  # tokens a call, net of what the prefix cache is expected to hold
    output_median: float  # tokens a call
    tool_s_before: float = 0.0  # seconds of tools before its calls arrive; no GPU time


@dataclass(frozen=True, slots=True)
class CompoundView:
    """A workflow's run as one unit. All calls of one stage share this object."""

    id: str
    stage: int = 0
    stages: int | None = None  # number of stages; None: not known
    width: int = 1  # calls in this stage, arrived or not
    last: bool = False  # this stage ends the workflow
    deadline: float | None = None  # of the whole workflow
    rest: tuple[StageEstimate, ...] = ()  # the stages after this one
    due: float | None = None  # of this stage, by its share of the deadline (D_s = φ(s)·D): a goal, not a limit
    branch: str | None = None  # whose calls continue each other's context; None: the workflow has one line of calls
    ttl_s: float | None = None  # after its answer, in which the branch may go on; 0: it does not; None: not known

    @property
    def chain(self) -> str:
        """The calls that continue each other's context."""
        return self.id if self.branch is None else f"{self.id}\n{self.branch}"


@dataclass(frozen=True, slots=True)
class GroupView:
    """A fork group: `size` siblings of one prompt, of which the workflow joins on the first `need`."""

    id: str
    size: int
    need: int

    @classmethod
    def of(cls, tags: SLOTags) -> GroupView | None:
        """The group that a call's tags name; None if they name none."""
        if tags.fork_group is None:
            return None
        size = tags.fork_size or 1
        return cls(tags.fork_group, size, tags.fork_need or size)


@dataclass(frozen=True, slots=True)
class RequestView:
    """One LLM call. Immutable: a host replaces it when the call has moved on (every few tokens is often enough)."""

    id: RequestId
    arrived: float
    slo_class: SloClass = SloClass.BEST_EFFORT
    deadline: float | None = None  # when its whole answer is needed; None: no such limit
    ttft: float | None = None  # when its first token is needed: a time, not a duration; met once `generated` is not 0
    tbt: float | None = None  # seconds between tokens; the n-th token is due at ttft + n * tbt
    admit_by: float | None = None  # when it is no longer worth starting, while `generated` is 0; None: never
    prompt_tokens: int = 0  # of the whole prompt, cached or not; the gateway estimates until the engine has counted
    cached_tokens: int = 0  # tokens of the prompt that will be in the prefix cache when it starts
    computed: int = 0  # tokens whose KV it holds now; 0 while it waits
    generated: int = 0  # answer tokens so far, including those before a preemption
    sketch: LengthSketch | None = None  # distribution of the whole answer's length; None: nothing is known
    weight: float = 1.0  # what its goodput is worth to the operator
    state: State = State.WAITING
    compound: CompoundView | None = None
    group: GroupView | None = None
    replica: int = 0
    max_tokens: int | None = None  # longest answer
    reading: Reading | None = None  # a stream's reader, who has no deadlines (ttft and tbt are None); else None
    client: str = ""  # who asks, where several clients have keys of their own

    @property
    def to_prefill(self) -> int:
        """Tokens to be computed before its next new token: the price of starting it, or of starting it again."""
        return max(1, self.prompt_tokens + self.generated - max(self.computed, self.cached_tokens))

    def moved_on(
        self, state: State, generated: int, computed: int, cached_tokens: int, reading: Reading | None = None
    ) -> RequestView:
        """Return what `dataclasses.replace` would, in half its time: an engine renews a dozen views in each step."""
        return RequestView(
            self.id,
            self.arrived,
            self.slo_class,
            self.deadline,
            self.ttft,
            self.tbt,
            self.admit_by,
            self.prompt_tokens,
            cached_tokens,
            computed,
            generated,
            self.sketch,
            self.weight,
            state,
            self.compound,
            self.group,
            self.replica,
            self.max_tokens,
            reading,
            self.client,
        )


@dataclass(frozen=True, slots=True)
class StepModel:
    """The time of one engine step in ms, linear in what the step holds.

    The defaults are a fit of published H200 kernel tables for an 8-billion-parameter Llama. A host scales the model
    by what it measures.
    """

    base_ms: float = 4.1
    per_seq_ms: float = 0.0055  # for each sequence in the batch
    per_kctx_ms: float = 0.0334  # for each 1000 tokens of context, summed over the batch
    per_prefill_ms: float = 0.0185  # for each prompt token computed in the step
    per_call_ms: float = 0.0  # for each call that starts, however long its prompt is

    def step_ms(self, sequences: float, context_tokens: float, prefill_tokens: float = 0.0) -> float:
        return (
            self.base_ms
            + self.per_seq_ms * sequences
            + self.per_kctx_ms * context_tokens / 1000
            + self.per_prefill_ms * prefill_tokens
        )

    def scaled(self, factor: float) -> StepModel:
        """Return the model of an engine that is `factor` times slower."""
        return StepModel(
            self.base_ms * factor,
            self.per_seq_ms * factor,
            self.per_kctx_ms * factor,
            self.per_prefill_ms * factor,
            self.per_call_ms * factor,
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    """The engine: how many calls it works on at once, how many it has, how fast it is and what it can do.

    `slots` is parallelism: it says how fast a call can go and how long others wait for it. `queue` says how many
    more calls the engine takes and holds in a queue of its own.
    """

    slots: int
    running: int = 0  # calls in the engine, including those in its own queue
    kv_free: int | None = None  # free tokens of KV; None: the host cannot see them
    step: StepModel = StepModel()
    can_preempt: bool = False  # a running call can be put back, to be computed again later
    can_pause: bool = False  # a running call can keep its KV and give up its slot
    can_cancel: bool = False  # a running call can be ended for good
    queue: int = 0  # calls that it takes beyond those that it works on
    pause_room: int | None = None  # so many more calls can be paused; None: no limit is known

    @property
    def free(self) -> int:
        """How many calls can be admitted now."""
        return max(0, self.slots + self.queue - self.running)


@dataclass(frozen=True, slots=True)
class View:
    """All that a policy decides over. No request is in it twice."""

    capacity: Capacity
    waiting: Sequence[RequestView] = ()  # WAITING and PREEMPTED, in any order
    running: Sequence[RequestView] = ()  # RUNNING; empty if the host cannot see into the engine
    paused: Sequence[RequestView] = ()  # PAUSED


@dataclass(frozen=True, slots=True)
class Needs:
    """The estimate that a refusal rests on: what the call needs at least if it starts at once."""

    due: float  # the deadline that binds
    tokens: float  # answer tokens before that deadline
    own_s: float  # seconds for its prompt and those tokens
    later_s: float = 0.0  # seconds for the tools and stages that follow before that deadline


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that is refused.

    `earliest_feasible_s` is the least deadline, in seconds from now, that would have been accepted; None if the
    policy does not know it. `needs` is None if the refusal rests on no estimate, for instance if the deadline has
    passed.
    """

    id: RequestId
    reason: str
    earliest_feasible_s: float | None = None
    needs: Needs | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision over a View. The host carries it out in this order: drop, preempt, pause, resume, admit."""

    admit: tuple[RequestId, ...] = ()  # start now, best first; a prefix of `order`; never more than slots become free
    order: tuple[RequestId, ...] = ()  # all of View.waiting except the dropped, best first
    preempt: tuple[RequestId, ...] = ()  # some of View.running or View.paused, worst first; only with can_preempt
    pause: tuple[RequestId, ...] = ()  # others of View.running, worst first; only with can_pause
    resume: tuple[RequestId, ...] = ()  # some of View.paused, best first; each takes a slot
    drop: tuple[Refusal, ...] = ()  # waiting calls, or with can_cancel any; they are in no other list
    budget: int | None = None  # most prompt tokens to compute in one step until the next verdict; None: no limit
    wake_at: float | None = None  # decide again then, even if nothing has changed; always later than now


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has ended, for policies that learn from the outcome of their verdicts."""

    view: RequestView  # its last view; `generated` is the whole length of its answer
    at: float
    met: bool  # it met its SLO; True for best effort that was answered
    delivered: int = 0  # tokens that were in time


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine works on, for a policy that may want to decide although nobody waits."""

    step_s: float  # time of the present batch's step
    tightest_s: float  # least time for a token of a running stream's reader; infinite without one


@runtime_checkable
class SelfTriggered(Protocol):
    """A policy that also decides while nothing waits. Others are not asked then: there is no choice for them."""

    def must_decide(self, load: Load, now: float) -> bool:
        """Is a decision due at the time `now`?"""


class Policy(Protocol):
    """Decides which calls the engine works on next.

    Deterministic: two policies that are made alike and get the same calls of `decide` and `observe` answer alike. A
    policy reads no clock, does no I/O and uses no randomness but a seeded one. Between calls it keeps only what it
    could compute again (keys of unchanged views), and what it learnt in `observe`.
    """

    def decide(self, view: View, now: float) -> Verdict:
        """Decide over all requests at the time `now`."""

    def observe(self, done: Finished) -> None:
        """Learn from a request that has ended. Policies that do not learn ignore it."""
