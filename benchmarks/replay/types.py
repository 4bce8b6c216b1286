"""The data of a replay: programs that arrive, contenders that schedule them, and the outcome of each program.

Times are seconds on the replay's own clock, which begins at 0. Lengths are tokens. All types are plain, frozen and
picklable. The bounds read the same `Program`s as the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile
from typing import NewType, Protocol

from ramify.serving.policy.kv_retention import Retention
from ramify.serving.policy.types import Policy, SloClass, StepModel
from ramify.serving.protocol.tags import XargValue

ProgramId = NewType("ProgramId", int)


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM call, as it truly is. A scheduler sees `output` only if its `Knowledge` says so."""

    prompt: int
    output: int  # tokens that it will generate
    blocks: tuple[int, ...] = ()  # names of the prompt's leading blocks: calls that share them hit the prefix cache
    block_tokens: int = 512  # tokens of each of `blocks`

    def uncached(self, known: set[int]) -> int:
        """Return the prompt tokens to compute: all but the leading blocks that are in `known`, which this call's
        blocks join."""
        cached = sum(self.block_tokens for _ in takewhile(known.__contains__, self.blocks))
        known.update(self.blocks)
        return max(1, self.prompt - cached)


@dataclass(frozen=True, slots=True)
class Stage:
    """Calls that arrive together, `tool_s` seconds after the last call of the stage before has ended."""

    calls: tuple[Call, ...]
    tool_s: float = 0.0
    typical_prompt: float = 0.0  # of a call, by a plan or pattern of earlier runs, not of this one
    typical_output: float = 0.0


@dataclass(frozen=True, slots=True)
class Program:
    """One request of a user: a call, or a workflow of stages. Goodput counts programs."""

    id: ProgramId
    at: float
    kind: SloClass
    stages: tuple[Stage, ...]
    ttft_s: float | None = None  # if latency-sensitive: the n-th token (from 0) is due at `at` + ttft_s + n * tbt_s
    tbt_s: float | None = None  # of a stream: its reader's
    deadline_s: float | None = None  # otherwise: all of it is due at `at` + deadline_s

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for stage in self.stages for call in stage.calls)

    @property
    def due(self) -> float:
        """When its last token is due."""
        if self.deadline_s is not None:
            return self.at + self.deadline_s
        last = max(call.output for call in self.calls) - 1
        return self.at + (self.ttft_s or 0.0) + last * (self.tbt_s or 0.0)


class Lengths(StrEnum):
    """What a contender is told of an answer's length, as `RequestView.sketch` and the tag `length_quantiles`."""

    NONE = "none"  # nothing: a policy learns what it can from ended calls
    MEAN = "mean"  # the distribution of the workload, the same for every call
    PREDICTED = "predicted"  # a calibrated distribution for each call, as good as `Knowledge.correlation`
    ORACLE = "oracle"  # the true length


class Structure(StrEnum):
    """What a contender is told of later stages, as `CompoundView.rest` and the tag `plan_rest`."""

    HIDDEN = "hidden"  # only which calls belong to one program, and to which stage
    PLAN = "plan"  # how many stages and calls will follow, and their typical lengths
    ORACLE = "oracle"  # the same with the true lengths and tool times


@dataclass(frozen=True, slots=True)
class Knowledge:
    lengths: Lengths = Lengths.PREDICTED
    structure: Structure = Structure.PLAN
    correlation: float = 0.7  # rank correlation of predicted and true length (docs/decisions/055)

    def as_oracle(self) -> Knowledge:
        return replace(self, lengths=Lengths.ORACLE, structure=Structure.ORACLE)


@dataclass(frozen=True, slots=True)
class Stock:
    """vLLM's own scheduler, without Ramify's plug-in."""

    chunked_prefill: bool = True
    priorities: tuple[tuple[SloClass, int], ...] = ()  # for vLLM's priority policy, the least number first; (): FCFS


class Gate(Protocol):
    """Admits whole programs before the engine."""

    def enters(self, program: int, tokens: int, now: float) -> bool:
        """May a call with a prompt of so many tokens enter the engine now?"""

    def acts(self, program: int, tokens: int, now: float) -> None:
        """The program's calls have ended with so many tokens of context, and it waits for a tool."""

    def ends(self, program: int) -> None:
        """The program has ended."""


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """One step of an engine, as it was scheduled."""

    at: float
    calls: int  # in the step
    context: int  # tokens of these calls in KV
    kv: float  # share of the KV memory that calls hold
    waiting: int  # calls that have no token yet and are not in this step
    aside: int  # calls that have tokens and are not in this step: paused or preempted


class Watch(Protocol):
    """Sees what a replay does."""

    def stepped(self, step: WatchedStep) -> None:
        """A step with calls was scheduled."""

    def streamed(self, program: Program, times: Sequence[float]) -> None:
        """A stream has ended. Its tokens came at these times."""


@dataclass(frozen=True, slots=True)
class TierSettings:
    """vLLM's CPU tier: KV in host memory."""

    tokens: int  # of KV that it holds
    copy_ms: float  # milliseconds to copy a token's KV to the engine


@dataclass(frozen=True, slots=True)
class Contender:
    """One scheduler of a comparison.

    It is a policy, which runs in the production plug-in (`ConcordScheduler`) as vLLM calls it, or vLLM's own
    scheduler. A policy is told what `knows` says and nothing else: an oracle is the same policy that knows more.
    """

    name: str
    engine: Callable[[], Policy] | Stock
    knows: Knowledge = field(default_factory=Knowledge)
    ours: bool = False  # a form of Concord: not counted among the baselines
    about: str = ""  # what it shows, for who reads the list of contenders
    preempts: bool = False  # it often preempts, so a replay begins with vLLM's prefix cache: the results are the same
    retention: Callable[[], Retention] | None = None  # of programs that wait for tools; None: vLLM's LRU
    gate: Callable[[int], Gate] | None = None  # by the tokens of KV; None: every call enters at once
    retold: Callable[[Program, int, int], dict[str, XargValue]] | None = None  # by stage and place, the tags instead
    tier: TierSettings | None = None  # vLLM's CPU tier
    placement_k: int | None = None  # before several engines, queues that a call stands in; None: one for all engines
    bring_back: bool = True  # our plug-in brings contexts back from it before their programs return


@dataclass(frozen=True, slots=True)
class Setting:
    """The engine and the length of a run, which all contenders of a comparison share."""

    step: StepModel = field(default_factory=StepModel)
    slots: int = 64
    pause_room: int = 16  # paused calls beyond the slots
    step_tokens: int = 8192  # most tokens of one step
    kv_tokens: int = 800_000  # what 141 GB hold beside 16 GB of weights, at 128 KiB a token
    block_size: int = 16
    seconds: float = 600.0  # programs arrive for so long
    warm: float = 0.1  # share of `seconds` at the start whose programs are not counted
    cool: float = 0.1  # the same at the end
    replicas: int = 1

    @property
    def window(self) -> tuple[float, float]:
        """Begin and end of the window: programs that arrive in it are counted."""
        return self.seconds * self.warm, self.seconds * (1 - self.cool)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    stage: int
    arrived: float
    prompt: int
    output: int
    first: float | None = None  # its first token; None: it never came
    ended: float | None = None  # its last token; None: refused, or still running when the replay ended
    refused: str | None = None  # why
    generated: int = 0
    in_time: int = 0  # tokens on schedule of a latency-sensitive call; of others all or none
    worst_gap: float = 0.0  # longest time between two tokens
    qoe: float | None = None  # of a stream that ended
    silence: float | None = None  # of a stream that ended: share of its time in which there was nothing to read


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one program. `met` counts for request goodput, `tokens_met` for token goodput."""

    program: Program
    calls: tuple[CallOutcome, ...]
    met: bool
    ended: float | None

    @property
    def tokens_met(self) -> int:
        """Tokens in time of a latency-sensitive program; prompt and answer of another that is met (thesis, chapter
        3).
        """
        if self.program.kind is SloClass.LATENCY:
            return sum(call.in_time for call in self.calls)
        return sum(call.prompt + call.output for call in self.calls) if self.met else 0
