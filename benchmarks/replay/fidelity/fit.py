"""How near a replay comes to a measured run of vLLM: fitted on the run's first half, judged on its second.

Fitting alternates. Replayed with the timing so far, each request's time from its first token to its last is a known
number of steps that held known sequences, contexts and prompt tokens: linear in the costs. A new timing gives
a new schedule, and so on until it stands still; where it does not in ten rounds, the result says so. Only the first
half's times are fitted to; of the second half the fit sees what an operator would: when requests came and how long
they are.

A request that the replay preempts is not fitted to. Whom KV runs out under changes with the least shift, so that its
steps are not those of the measured one; as errors of what a fit explains by, they pull every cost away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from benchmarks.replay.fidelity.measured_run import Run, Served
from benchmarks.replay.fidelity.rerun import StepLog, again
from benchmarks.replay.inputs.step_times import Held, Timing, least, terms

_SCALINGS, _ROUNDS = 2, 10
# Where a fit moves neither a full step's time nor a small one's by more than this share, it is the last.
_STILL = 0.002


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
    step: Timing
    fitted_on: int
    still: bool  # the fit stood still; if not, `step` is where the last of its rounds left it
    moved: float  # how far from `step` that round's fit was, as a share of a step's time
    ttft: Error  # of the second half
    tpot: Error
    residuals: tuple[tuple[float, float, float, float], ...]  # of the second half: TTFT, TPOT measured and replayed


def judge(run: Run, folder: Path, start: Timing | None = None) -> Fidelity:
    """Fit on the first half, replay with what was found, and hold the second half against it."""
    half = len(run.requests) // 2
    step, moved = fitted(run, half, folder, start or Timing())
    replayed, _ = again(run, step.ms, folder)
    return _judged(run, step, moved, half, replayed)


def fitted(run: Run, upto: int, folder: Path, start: Timing) -> tuple[Timing, float]:
    """The timing that the times of the first `upto` requests give, and by what share the last round's fit was off it.

    First `start` is made slower or faster as a whole until tokens come at the measured pace: a schedule that is far
    off says nothing of single terms. Then half the way to each fit, since a timing moves the schedule under it.
    """
    measured = run.requests[:upto]
    paced = [n for n, one in enumerate(measured) if one.output > 1]  # a single token has no pace
    pace = fmean(measured[n].tpot for n in paced)
    step = start
    for _ in range(_SCALINGS):
        replayed, _ = again(run, step.ms, folder, upto)
        step = step.scaled(pace / fmean(replayed[n].tpot for n in paced))
    like, moved = step, 0.0
    for _ in range(_ROUNDS):
        replayed, log = again(run, step.ms, folder, upto)
        found = _fit(measured, replayed, log, like)
        step = step.halfway(found)
        moved = max(abs(found.ms(held) / step.ms(held) - 1) for held in _steps(run))
        if moved <= _STILL:
            break
    # The least squares of single requests need not hit their mean: what is left of it is taken off all terms alike.
    replayed, _ = again(run, step.ms, folder, upto)
    return step.scaled(pace / fmean(replayed[n].tpot for n in paced)), moved


def _fit(measured: Sequence[Served], replayed: Sequence[Served], log: StepLog, like: Timing) -> Timing:
    told = [n for n, one in enumerate(measured) if one.output > 1 and one.last > one.first]
    kept = [n for n in told if str(n) not in log.preempted]
    if len(kept) < len(astuple(like)):
        kept = told
    upto = list(accumulate(map(terms, log.held), _sum, initial=(0.0,) * len(astuple(like))))
    sums = []
    for n in kept:
        steps = log.within(replayed[n].first, replayed[n].last)
        sums.append([end - begin for begin, end in zip(upto[steps.start], upto[steps.stop], strict=True)])
    took = [(measured[n].last - measured[n].first) * 1000 for n in kept]
    return Timing(*least(sums, took, astuple(like)))


def _sum(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _steps(run: Run) -> tuple[Held, Held]:
    """A full batch of typical requests, with a tenth of its tokens prefill, and one such request alone. By the full
    one only, a fit stood still where the fixed part was still nearer to where it began than to what was found."""
    context = fmean(one.prompt + one.output / 2 for one in run.requests)
    full = Held(run.slots, round(run.slots * context), run.slots + run.step_tokens // 10)
    return full, Held(1, round(context), 1)


def _judged(run: Run, step: Timing, moved: float, half: int, replayed: Sequence[Served]) -> Fidelity:
    pairs = list(zip(run.requests[half:], replayed[half:], strict=True))
    spread = [(m, r) for m, r in pairs if m.output > 1]
    return Fidelity(
        run.name,
        step,
        half,
        moved <= _STILL,
        moved,
        _error([(m.ttft, r.ttft) for m, r in pairs]),
        _error([(m.tpot, r.tpot) for m, r in spread]),
        tuple((m.ttft, m.tpot, r.ttft, r.tpot) for m, r in pairs),
    )


def _error(pairs: Sequence[tuple[float, float]]) -> Error:
    return Error(fmean(m for m, _ in pairs), fmean(r for _, r in pairs), fmean(abs(r - m) for m, r in pairs))
