"""What a request is worth if it is in time, and what it still costs: tokens, GPU time and wall time.

`Goodput` says what counts as worth; the provider chooses it (thesis, chapter 3).

*GPU time* is a request's share of the engine: its prefill, and for each token its own part of a step plus its share
of the step's fixed part. Another request could have had it, so it is the price in a density. *Wall time* is how
long the request takes when it holds a slot among others: one step for each token. Deadlines are compared with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ramify.serving.policy.types import Capacity, Finished, RequestView, SloClass, StepModel
from ramify.serving.protocol.length_sketch import LengthSketch


class Goodput(StrEnum):
    # prompt and answer tokens of requests in time; of latency-sensitive ones, answer tokens on schedule
    TOKEN = "token"
    REQUEST = "request"  # calls in time
    WORKFLOW = "workflow"  # programs in time: a workflow, or a call that belongs to none


def is_latency(view: RequestView) -> bool:
    """Is the request judged token by token?

    The last call of a compound request is too, if it names a time to first token or between tokens (thesis, chapter
    3).
    """
    final = view.compound is not None and view.compound.last and (view.ttft is not None or view.tbt is not None)
    return view.slo_class in (SloClass.LATENCY, SloClass.STREAM) or final


def worth(goodput: Goodput, view: RequestView, output_left: float) -> float:
    """Return goodput(r): what this call adds if it is completed in time.

    The goodput of a stage is the sum over its calls. If programs count, the calls of a stage share one program.
    """
    if goodput is Goodput.REQUEST:
        return view.weight
    if goodput is Goodput.WORKFLOW:
        return view.weight / (view.compound.width if view.compound else 1)
    if is_latency(view):
        return view.weight * output_left
    return view.weight * (view.prompt_tokens + view.generated + output_left)


def rest_worth(goodput: Goodput, view: RequestView) -> float:
    """Return the goodput of the later stages' calls, at weight 1; 0 if they are not known, or if programs count."""
    if view.compound is None or goodput is Goodput.WORKFLOW:
        return 0.0
    rest = view.compound.rest
    if goodput is Goodput.REQUEST:
        return sum(stage.calls for stage in rest)
    return sum(stage.calls * (stage.prefill + stage.output_median) for stage in rest)


PRIOR_LIMIT = 4096.0  # tokens: the longest answer that a request without a sketch is expected to give
_EDGES = tuple(2.0 ** (i / 2) for i in range(25))  # 1 … 4096, two bins an octave
_ENOUGH = 20  # answers of a class that must be seen before its own lengths are used


@dataclass(slots=True)
class LengthPrior:
    """Answer lengths by class, for requests without a length sketch. Learns from ended calls; halves its counts at
    1000.
    """

    _counts: dict[SloClass, list[float]] = field(default_factory=dict)
    _sketches: dict[SloClass, LengthSketch] = field(default_factory=dict)

    def sketch(self, slo_class: SloClass) -> LengthSketch:
        return self._sketches.get(slo_class, _COLD)

    def learn(self, done: Finished) -> None:
        length = done.view.generated
        if length < 1:
            return
        counts = self._counts.setdefault(done.view.slo_class, [0.0] * len(_EDGES))
        counts[min(bisect_right(_EDGES, length) - 1, len(_EDGES) - 1)] += 1
        seen = sum(counts)
        if seen >= _ENOUGH and seen % 10 == 0:
            self._sketches[done.view.slo_class] = _from_counts(counts, seen)
        if seen >= 1000:
            counts[:] = [count // 2 for count in counts]


_COLD = LengthSketch.cold(PRIOR_LIMIT)


def _from_counts(counts: Sequence[float], seen: float) -> LengthSketch:
    levels, values, below = [0.0], [1.0], 0.0
    for i, count in enumerate(counts):
        if count and below + count < seen:
            below += count
            levels.append(below / seen)
            values.append(_EDGES[min(i + 1, len(_EDGES) - 1)])
    top = max(i for i, count in enumerate(counts) if count)
    return LengthSketch((*levels, 1.0), (*values, _EDGES[min(top + 1, len(_EDGES) - 1)]))


def remaining(view: RequestView, prior: LengthPrior, q: float) -> float:
    """Return the quantile `q` of the answer tokens still to come; at least one."""
    sketch = prior.sketch(view.slo_class) if view.sketch is None else view.sketch
    length = sketch.quantile(q, view.generated)
    if view.max_tokens is not None and view.max_tokens < length:
        length = view.max_tokens
    return max(1.0, length - view.generated)


def remaining_quantiles(view: RequestView, prior: LengthPrior, first: float, second: float) -> tuple[float, float]:
    """Return `remaining` for two quantiles, in little more time than for one."""
    generated, cut = view.generated, view.max_tokens
    sketch = prior.sketch(view.slo_class) if view.sketch is None else view.sketch
    one, other = sketch.quantiles(first, second, generated)
    if cut is not None:
        one, other = min(one, cut), min(other, cut)
    return max(1.0, one - generated), max(1.0, other - generated)


def pace_s(capacity: Capacity, running: Sequence[RequestView]) -> float:
    """Return the seconds from one token to the next, in a full batch of requests like those that run now.

    This is v_token in the thesis's equation of t_gen (§4.2).
    """
    return pace_of(capacity, sum([view.prompt_tokens + view.generated for view in running]), len(running))


def pace_of(capacity: Capacity, context: int, running: int) -> float:
    """Return `pace_s` for `running` requests with `context` tokens together."""
    full = context * capacity.slots / running if running else capacity.slots * 512.0
    if capacity.kv_free is not None:
        full = min(full, float(context + capacity.kv_free))
    return capacity.step.step_ms(capacity.slots, full) / 1000


def prefill_s(step: StepModel, tokens: float) -> float:
    """Return the GPU time of so many prompt tokens, in seconds."""
    return step.per_prefill_ms * tokens / 1000


def before_token_s(step: StepModel, tokens: float) -> float:
    """Return the wall time from a call's start to the step that makes its first token, in seconds.

    Other calls go on during its fixed part, so that part is no GPU time.
    """
    return step.per_call_ms / 1000 + prefill_s(step, tokens)


def decode_gpu_s(step: StepModel, slots: int, context: float, tokens: float) -> float:
    """Return the GPU time of `tokens` answer tokens after `context` tokens, in a full batch of `slots`."""
    per_token = step.base_ms / max(1, slots) + step.per_seq_ms + step.per_kctx_ms * (context + tokens / 2) / 1000
    return per_token * tokens / 1000


def rest_gpu_s(view: RequestView, capacity: Capacity) -> float:
    """Return the GPU time of the later stages by the plan or the matched pattern, in seconds; 0 if neither is
    known.
    """
    if view.compound is None:
        return 0.0
    step, slots = capacity.step, capacity.slots
    return sum(
        stage.calls * (prefill_s(step, stage.prefill) + decode_gpu_s(step, slots, stage.prefill, stage.output_median))
        for stage in view.compound.rest
    )


def rest_wall_s(view: RequestView, capacity: Capacity, token_s: float, shortest: float = 1.0) -> float:
    """Return the wall time of the later stages, in seconds: their tools, their prefill, and one call's answer each.

    The calls of a stage run in parallel. `shortest` scales tools and answers, for an optimistic bound.
    """
    if view.compound is None:
        return 0.0
    return sum(
        stage.tool_s_before * shortest
        + before_token_s(capacity.step, stage.prefill)
        + stage.output_median * shortest * token_s
        for stage in view.compound.rest
    )


def aggregate_engines(step: StepModel, engines: float) -> StepModel:
    """Return the step model of several equal engines that a policy sees as one, for a queue before all of them.

    The engines step in parallel. Each has its share of the batch and of the prompts, and the fixed part of a step
    passes once for all. So a full batch of all takes as long as a full batch of one, and a token or a prompt takes
    an n-th of all engines' time. A single prompt is computed by one engine, which takes longer than this says: no
    call is refused for that.
    """
    return StepModel(
        step.base_ms,
        step.per_seq_ms / engines,
        step.per_kctx_ms / engines,
        step.per_prefill_ms / engines,
        step.per_call_ms / engines,
    )
