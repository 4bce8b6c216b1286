"""What a replay is made of: programs that arrive, contenders that schedule them, and what came of each.

Times are seconds on the replay's own clock, which begins at 0; lengths are tokens. All of it is plain, frozen and
picklable: the bounds read the same `Program`s that the engine is fed with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType

from ramify.serving.policy.types import Policy, SloClass, StepModel

ProgramId = NewType("ProgramId", int)


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM call, as it truly is. No scheduler sees `output` unless its `Knowledge` says so."""

    prompt: int
    output: int  # tokens that it will generate
    blocks: tuple[int, ...] = ()  # names of the prompt's leading blocks: calls that share them hit the prefix cache
    block_tokens: int = 512  # tokens of each of `blocks`


@dataclass(frozen=True, slots=True)
class Stage:
    """Calls that arrive together: `tool_s` after the last of the stage before has ended."""

    calls: tuple[Call, ...]
    tool_s: float = 0.0
    typical_prompt: float = 0.0  # of a call, as a plan or a pattern has it from earlier runs: not from this one
    typical_output: float = 0.0


@dataclass(frozen=True, slots=True)
class Program:
    """One request of a user's: a call, or a workflow of stages. What goodput counts."""

    id: ProgramId
    at: float
    kind: SloClass
    stages: tuple[Stage, ...]
    ttft_s: float | None = None  # latency-sensitive: the n-th token (from 0) is due at `at` + ttft_s + n * tbt_s
    tbt_s: float | None = None
    deadline_s: float | None = None  # the others: all of it is due at `at` + deadline_s

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for stage in self.stages for call in stage.calls)

    @property
    def due(self) -> float:
        """When its last token must be there at the latest."""
        if self.deadline_s is not None:
            return self.at + self.deadline_s
        last = max(call.output for call in self.calls) - 1
        return self.at + (self.ttft_s or 0.0) + last * (self.tbt_s or 0.0)


class Lengths(StrEnum):
    """What a contender is told of an answer's length, as `RequestView.sketch` and `length_quantiles`."""

    NONE = "none"  # no sketch: a policy learns what it can from what ends
    MEAN = "mean"  # the workload's distribution, the same for every call
    PREDICTED = "predicted"  # a calibrated distribution for each call, as good as `Knowledge.correlation`
    ORACLE = "oracle"  # the true length


class Structure(StrEnum):
    """What a contender is told of later stages, as `CompoundView.rest` and `plan_rest`."""

    HIDDEN = "hidden"  # only which calls are one program's, and of which stage
    PLAN = "plan"  # how many stages and calls will follow, with the typical lengths of each
    ORACLE = "oracle"  # the same with the true lengths and tool times


@dataclass(frozen=True, slots=True)
class Knowledge:
    lengths: Lengths = Lengths.PREDICTED
    structure: Structure = Structure.PLAN
    correlation: float = 0.7  # of predicted and true length, as ranks: what a predictor reached on held-out prompts

    def as_oracle(self) -> Knowledge:
        return replace(self, lengths=Lengths.ORACLE, structure=Structure.ORACLE)


@dataclass(frozen=True, slots=True)
class Stock:
    """vLLM's own scheduler, without a line of ours in it."""

    chunked_prefill: bool = True
    priorities: tuple[tuple[SloClass, int], ...] = ()  # vLLM's priority policy, the least number first; (): FCFS


@dataclass(frozen=True, slots=True)
class Contender:
    """One scheduler that is held against the others.

    Either a policy, which runs in the production plug-in (`ConcordScheduler`) as vLLM calls it, or vLLM's own
    scheduler. A policy is told what `knows` says and nothing else: an oracle is the same policy that knows more.
    """

    name: str
    engine: Callable[[], Policy] | Stock
    knows: Knowledge = field(default_factory=Knowledge)
    ours: bool = False  # a form of Concord: not counted among the baselines
    about: str = ""  # one line for tables and plots
    preempts: bool = False  # it often does, so that a replay begins with vLLM's prefix cache; what comes is the same


@dataclass(frozen=True, slots=True)
class Setting:
    """The engine that all contenders of a comparison share."""

    step: StepModel = field(default_factory=StepModel)
    slots: int = 64
    pause_room: int = 16
    step_tokens: int = 8192  # most tokens of one step
    kv_tokens: int = 800_000  # what 141 GB hold beside 16 GB of weights, at 128 KiB a token
    block_size: int = 16
    seconds: float = 600.0  # programs arrive for so long
    warm: float = 0.1  # share of `seconds` at the start, and
    cool: float = 0.1  # at the end, whose programs are load and not counted
    replicas: int = 1

    @property
    def window(self) -> tuple[float, float]:
        """Programs that arrive in it are counted."""
        return self.seconds * self.warm, self.seconds * (1 - self.cool)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    stage: int
    arrived: float
    prompt: int
    output: int
    first: float | None = None  # its first token; None: it never came
    ended: float | None = None  # its last token; None: refused, or not over when the replay ended
    refused: str | None = None  # why
    generated: int = 0
    in_time: int = 0  # tokens that kept the timeline of a latency-sensitive call; of others all or none
    worst_gap: float = 0.0  # longest time between two tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one program: `met` is request goodput, `tokens_met` token goodput, `calls_met` calls that were of
    use (all calls of a program that is met)."""

    program: Program
    calls: tuple[CallOutcome, ...]
    met: bool
    ended: float | None

    @property
    def tokens_met(self) -> int:
        """Thesis, chapter 3: tokens in time of a latency-sensitive one; prompt and answer of another that is met."""
        if self.program.kind is SloClass.LATENCY:
            return sum(call.in_time for call in self.calls)
        return sum(call.prompt + call.output for call in self.calls) if self.met else 0
