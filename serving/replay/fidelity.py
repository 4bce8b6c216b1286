"""How near a replay comes to a measured run of vLLM: fitted on the run's first half, judged on its second.

Fitting alternates. Replayed with the model so far, each request's time from its first token to its last is a known
number of steps that held known sequences, contexts and prompt tokens: linear in the coefficients. A new model gives
a new schedule, and so on until it stands still. Only the first half's times are fitted to; of the second half
the fit sees what an operator would: when requests came and how long they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ramify.serving.policy.types import StepModel
from ramify.serving.replay.measured import Run, Served
from ramify.serving.replay.steps import Span, fit

if TYPE_CHECKING:
    from ramify.serving.vllm_plugin.bare import BareEngine

_SCALINGS, _ROUNDS = 2, 8
_STILL = 0.002  # a round that moves a full step's time by no more than this share is the last


@dataclass(frozen=True, slots=True)
class Error:
    """Measured and replayed means over the same requests."""

    measured: float
    replayed: float
    mean_absolute: float  # of single requests

    @property
    def relative(self) -> float:
        return self.replayed / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Fidelity:
    run: str
    step: StepModel
    fitted_on: int
    ttft: Error  # of the second half
    tpot: Error
    residuals: tuple[tuple[float, float, float, float], ...]  # of the second half: TTFT, TPOT measured and replayed


def judge(run: Run, folder: Path, start: StepModel | None = None) -> Fidelity:
    """Fit on the first half, replay with what was found, and hold the second half against it."""
    half = len(run.requests) // 2
    step = fitted(run, half, folder, start or StepModel())
    replayed, _ = again(run, step, folder)
    return _judged(run, step, half, replayed)


def fitted(run: Run, upto: int, folder: Path, start: StepModel) -> StepModel:
    """The model that the times of the first `upto` requests give.

    First `start` is made slower or faster as a whole until tokens come at the measured pace: a schedule that is far
    off says nothing of single terms. Then half the way to each fit, since a model moves the schedule under it.
    """
    measured = run.requests[:upto]
    pace = fmean(one.tpot for one in measured)
    step = start
    for _ in range(_SCALINGS):
        replayed, _ = again(run, step, folder, upto)
        step = step.scaled(pace / fmean(one.tpot for one in replayed[:upto]))
    like = step
    for _ in range(_ROUNDS):
        replayed, log = again(run, step, folder, upto)
        spans = [
            log.span(ours.first, ours.last, theirs.last - theirs.first)
            for theirs, ours in zip(measured, replayed, strict=False)
            if theirs.last > theirs.first
        ]
        found = fit(spans, like)
        step = _between(step, found)
        if abs(_full_step_ms(run, found) / _full_step_ms(run, step) - 1) <= _STILL:
            break
    # The least squares of single requests need not hit their mean: what is left of it is taken off all terms alike.
    replayed, _ = again(run, step, folder, upto)
    return step.scaled(pace / fmean(one.tpot for one in replayed))


def _between(a: StepModel, b: StepModel) -> StepModel:
    return StepModel(
        (a.base_ms + b.base_ms) / 2,
        (a.per_seq_ms + b.per_seq_ms) / 2,
        (a.per_kctx_ms + b.per_kctx_ms) / 2,
        (a.per_prefill_ms + b.per_prefill_ms) / 2,
    )


def _full_step_ms(run: Run, step: StepModel) -> float:
    """Of a full batch of typical requests, with a tenth of its tokens prefill."""
    context = fmean(one.prompt + one.output / 2 for one in run.requests)
    return step.step_ms(run.slots, run.slots * context, run.step_tokens / 10)


class StepLog:
    """What each step of a replay held, summed up to it."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self.ends: list[float] = []
        self._sums = [(0.0, 0.0, 0.0, 0.0)]
        self.engine: BareEngine | None = None

    def __call__(self, scheduler: Any, output: Any) -> float:
        assert self.engine is not None
        requests = scheduler.requests
        names = output.num_scheduled_tokens
        context = sum([requests[name].num_computed_tokens for name in names])
        prefill = max(0, output.total_num_scheduled_tokens - len(names))
        seconds = self._model.step_ms(len(names), context, prefill) / 1000
        steps, sequences, kcontext, prefilled = self._sums[-1]
        self._sums.append((steps + 1, sequences + len(names), kcontext + context / 1000, prefilled + prefill))
        self.ends.append(max(self.engine.now, self.ends[-1] if self.ends else 0.0) + seconds)
        return seconds

    def span(self, begin: float, end: float, seconds: float) -> Span:
        """Of the steps that end after `begin` and not after `end`, held against measured `seconds`."""
        low, high = self._sums[self._at(begin)], self._sums[self._at(end)]
        return Span(seconds, *(b - a for a, b in zip(low, high, strict=True)))

    def _at(self, time: float) -> int:
        return bisect_left(self.ends, time + 1e-9)


def again(run: Run, step: StepModel, folder: Path, upto: int | None = None) -> tuple[list[Served], StepLog]:
    """The run's requests through vLLM's own scheduler, first come first served; only until the first `upto` ended."""
    from ramify.serving.vllm_plugin.bare import BareEngine, BareSettings

    log = StepLog(step)
    context = max(r.prompt + r.output for r in run.requests) + 16
    size = run.block_size
    # Where the run does not say: as many as all slots could fill twice; in all there is no more than its requests.
    blocks = run.blocks or 1 + min(
        2 * run.slots * -(-context // size), sum(-(-(r.prompt + r.output) // size) + 1 for r in run.requests)
    )
    settings = BareSettings(
        slots=run.slots,
        room=0,
        blocks=blocks,
        block_size=size,
        step_tokens=run.step_tokens,
        context=context,
        concord=None,
        chunked_prefill=run.chunked_prefill,
        overlap=run.overlap,
        brisk=True,
    )
    engine = log.engine = BareEngine(folder, settings, log)
    coming = list(enumerate(run.requests))[::-1]
    first = [str(i) for i in range(len(run.requests) if upto is None else upto)]
    while not all(name in engine.ended for name in first):
        if coming and len(engine.ended) == len(run.requests) - len(coming):
            engine.now = max(engine.now, coming[-1][1].arrived)
        while coming and coming[-1][1].arrived <= engine.now:
            number, one = coming.pop()
            engine.add(str(number), [1_000_000 + number] * one.prompt, one.output, at=one.arrived)
        engine.step()
    return [_replayed(engine, name, one) for name, one in zip(first, run.requests, strict=False)], log


def _replayed(engine: BareEngine, name: str, measured: Served) -> Served:
    times = engine.tokens[name]
    return Served(measured.prompt, measured.output, measured.arrived, times[0], times[-1])


def _judged(run: Run, step: StepModel, half: int, replayed: Sequence[Served]) -> Fidelity:
    pairs = list(zip(run.requests[half:], replayed[half:], strict=True))
    spread = [(m, r) for m, r in pairs if m.output > 1]
    return Fidelity(
        run.name,
        step,
        half,
        _error([(m.ttft, r.ttft) for m, r in pairs]),
        _error([(m.tpot, r.tpot) for m, r in spread]),
        tuple((m.ttft, m.tpot, r.ttft, r.tpot) for m, r in pairs),
    )


def _error(pairs: Sequence[tuple[float, float]]) -> Error:
    return Error(fmean(m for m, _ in pairs), fmean(r for _, r in pairs), fmean(abs(r - m) for m, r in pairs))
