"""`judge`: how near a replay is to a measured run of vLLM. It is fitted on the run's first half, and judged on its
second.

The fit alternates. In a replay with the timing so far, each request's time from its first to its last token is a
known number of steps that held known sequences, contexts and prompt tokens: it is linear in the costs. A new timing
gives a new schedule, and so on until the timing converges. If it does not in ten rounds, the result says so. Only
the times of the first half are used. Of the second half the fit sees what an operator would: arrivals and lengths.

Requests that the replay preempts are left out of the fit. Which request KV runs out under changes with the smallest
shift, so its steps are not those of the measured one, and errors in the explaining variables would distort every
cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from benchmarks.replay.fidelity.measured_run import Run, Served
from benchmarks.replay.fidelity.rerun import StepLog, rerun
from benchmarks.replay.inputs.step_times import Held, Timing, least, terms

_SCALINGS, _ROUNDS = 2, 10
# The fit has converged when neither a full step's time nor a small one's changes by more than this share.
_STILL = 0.002


@dataclass(frozen=True, slots=True)
class Error:
    """Measured and replayed means over the same requests, in seconds."""

    measured: float
    replayed: float
    mean_absolute: float  # mean absolute error of single requests

    @property
    def relative(self) -> float:
        return self.replayed / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Fidelity:
    run: str
    step: Timing
    fitted_on: int
    still: bool  # the fit converged; if not, `step` is the result of its last round
    moved: float  # how far the last round's fit was from `step`, as a share of a step's time
    ttft: Error  # of the second half
    tpot: Error
    residuals: tuple[tuple[float, float, float, float], ...]  # of the second half: TTFT, TPOT measured and replayed


def judge(run: Run, folder: Path, start: Timing | None = None) -> Fidelity:
    """Fit on the first half, replay with the result, and compare the second half. It may write to `folder`."""
    half = len(run.requests) // 2
    step, moved = fitted(run, half, folder, start or Timing())
    replayed, _ = rerun(run, step.ms, folder)
    return _judged(run, step, moved, half, replayed)


def fitted(run: Run, upto: int, folder: Path, start: Timing) -> tuple[Timing, float]:
    """Return the timing fitted to the first `upto` requests, and by what share the last round's fit differed from it.

    First `start` is scaled as a whole until tokens come at the measured pace: a schedule that is far off says
    nothing about single terms. Then each round goes half the way to its fit, because a new timing changes the
    schedule.
    """
    measured = run.requests[:upto]
    paced = [n for n, one in enumerate(measured) if one.output > 1]  # a single token has no pace
    pace = fmean(measured[n].tpot for n in paced)
    step = start
    for _ in range(_SCALINGS):
        replayed, _ = rerun(run, step.ms, folder, upto)
        step = step.scaled(pace / fmean(replayed[n].tpot for n in paced))
    like, moved = step, 0.0
    for _ in range(_ROUNDS):
        replayed, log = rerun(run, step.ms, folder, upto)
        found = _fit(measured, replayed, log, like)
        step = step.halfway(found)
        moved = max(abs(found.ms(held) / step.ms(held) - 1) for held in _steps(run))
        if moved <= _STILL:
            break
    # Least squares over single requests need not match their mean: scale all terms alike to match it.
    replayed, _ = rerun(run, step.ms, folder, upto)
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
    """Return two typical steps: a full batch with a tenth of its tokens prefill, and one request alone.

    With the full step only, a fit seemed to converge while the fixed part was still nearer to its start than to its
    result.
    """
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
