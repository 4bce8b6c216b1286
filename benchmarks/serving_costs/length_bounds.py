"""Measure the request analyzer: the cost of length bounds, their coverage, and what pattern graphs predict.

    python -m benchmarks.serving_costs.length_bounds [--quick] [--data DIR]

With --data (or RAMIFY_TRACES) lengths are learned from `responses/*.jsonl` (one {"prompt", "response"} per line,
one file per model), and patterns from `agent_sessions/*.json` and `tool_trajectories/*.json`. All may be gzipped.
Without it, synthetic traffic is used, and the rows say so. Suitable data: alpaca_eval (tatsu-lab, Apache-2.0),
kv-cache-tester (Apache-2.0), tau-bench (sierra-research, MIT). The split is by prompt, never by row; tokens are
estimated from the text.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.held_out_prompts import group, held_out
from benchmarks.replay.errors import BadTrace
from benchmarks.replay.inputs.traces import files_of, response_pairs
from benchmarks.rows import Row, not_measured, options, run, show
from benchmarks.serving_costs import pattern_cohorts
from benchmarks.serving_costs.stage_patterns import pattern_rows, row
from benchmarks.serving_costs.synthetic_lengths import traffic
from ramify.serving.lengths import checkpoint, features
from ramify.serving.lengths.client import AnalyzerClient
from ramify.serving.lengths.features import Matrix
from ramify.serving.lengths.learner import Models, learnt_from
from ramify.serving.lengths.length_model import LengthModel, Sample, fit
from ramify.serving.lengths.service import Service
from ramify.serving.lengths.supervisor import AnalyzerSupervisor
from ramify.serving.lengths.types import Ask
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch

ENVIRONMENT = "RAMIFY_TRACES"
_SALT = 7
_LIMIT = 8_192
_STEP, _FEWEST = 50, 50
_TOKEN = re.compile(r"\w{1,7}|[^\w\s]|\n")  # close to a byte-pair tokenizer's count for English prose

Floats = npt.NDArray[np.float64]
Moment = tuple[Ask, int, Matrix]  # a call in the middle of its answer: the tokens still to come, its features


@dataclass(frozen=True)
class Lengths:
    """Answers to learn from, and answers to other prompts to evaluate on."""

    source: str
    learn: Sample
    judge: Sample


def rows(quick: bool, data: Path | None = None) -> Iterator[Row]:
    """Yield each row when it is measured. `data`: a folder of traces, else RAMIFY_TRACES, else synthetic traffic."""
    if data is None and ENVIRONMENT in os.environ:
        data = Path(os.environ[ENVIRONMENT])
    lengths = _lengths(data, quick)
    model = fit(lengths.learn)
    yield from _cost_rows(lengths, model, repeats=20 if quick else 60)
    yield from _coverage_rows(lengths, model)
    if data is not None and not quick:
        yield from _again_rows(data, model, set(lengths.judge.groups.tolist()))
    yield from pattern_rows(data)
    if data is not None and not quick:
        yield from pattern_cohorts.rows(data)
    yield asyncio.run(_gap_row(model, kills=3 if quick else 20))


def _answers(data: Path) -> Iterator[tuple[Ask, str]]:
    for path in files_of(data / "responses", ".jsonl"):
        for pair in response_pairs(path):
            yield (
                Ask(model=path.name.partition(".jsonl")[0], prompt=pair["prompt"], limit=_LIMIT),
                pair["response"],
            )


def _group(ask: Ask) -> int:
    return group(ask.prompt)


def _lengths(data: Path | None, quick: bool) -> Lengths:
    answers = [] if data is None else list(_answers(data))
    asks = [(ask, max(1, len(_TOKEN.findall(answer)))) for ask, answer in answers]
    source = ", ".join(sorted({ask.model for ask, _ in asks}))
    if not asks:
        asks, source = traffic(1_000 if quick else 2_500, seed=1), "made-up traffic"
    groups = np.array([_group(ask) for ask, _ in asks], dtype=np.int32)
    unseen = np.isin(groups, held_out(groups))
    if not _FEWEST <= unseen.sum() < len(asks):
        few = f"{unseen.sum()} of {len(asks)} answers are to held-out prompts: at least {_FEWEST} are needed"
        raise BadTrace(data or Path(), few)
    return Lengths(source, _sample(asks, groups, ~unseen), _sample(asks, groups, unseen))


def _sample(asks: list[tuple[Ask, int]], groups: npt.NDArray[np.int32], which: npt.NDArray[np.bool_]) -> Sample:
    chosen = [asks[i] for i in np.flatnonzero(which)]
    return Sample(
        rows=np.stack([features.of(ask, _SALT) for ask, _ in chosen]),
        lengths=np.array([float(length) for _, length in chosen]),
        cut=np.zeros(len(chosen), dtype=np.bool_),
        groups=groups[which],
        keys=tuple(ask.model for ask, _ in chosen),
    )


def _peer(sample: Sample) -> Any:
    """Train quantile-forest with the same number of trees, leaves and features."""
    from quantile_forest import RandomForestQuantileRegressor

    leaf = max(10, len(sample.rows) // 200)
    peer = RandomForestQuantileRegressor(
        100, min_samples_leaf=leaf, max_features=0.3, max_samples_leaf=None, random_state=0, n_jobs=1
    )
    return peer.fit(sample.rows, np.log1p(sample.lengths))


def _timed(work: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Return median, 5th and 95th percentile, in seconds."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    low, high = np.percentile(took, [5, 95]).tolist()
    return statistics.median(took), low, high


def _cost_rows(lengths: Lengths, model: LengthModel, repeats: int) -> list[Row]:
    judge, peer = lengths.judge, _peer(lengths.learn)
    out = []
    for name, count, target in (("predict, batched", 256, 1.0), ("predict, one alone", 1, None)):
        some = judge.rows[:count]
        keys, limits = judge.keys[: len(some)], [float(_LIMIT)] * len(some)
        per = 1e3 / len(some)
        ours, low, high = (t * per for t in _timed(lambda a=some, k=keys, m=limits: model.sketches(a, k, m), repeats))
        theirs = _timed(lambda a=some: peer.predict(a, quantiles=list(LEVELS)), repeats)[0] * per
        note = f"{low:.3f} to {high:.3f} ms; ours with calibration and sketch; rows of {len(some)}"
        met = target is None or ours <= target
        goal = "none" if target is None else "<= 1 ms"
        out.append(
            row(f"length bound: {name}, a row", round(ours, 4), "ms", goal, met, note, "quantile-forest", theirs)
        )
    sketch = model.sketches(judge.rows[:1], judge.keys[:1], [float(_LIMIT)])[0].sketch
    middle = sketch.quantile(0.5)
    # As the engine does it: the bound given the generated tokens, without building the whole conditioned sketch.
    median, low, high = (
        t * 1e6 / 1_000
        for t in _timed(lambda: [sketch.quantile(0.95, middle) for _ in range(1_000)], max(20, repeats))
    )
    whole = _timed(lambda: [sketch.condition(middle).quantile(0.95) for _ in range(1_000)], max(20, repeats))[0] * 1e3
    note = f"{low:.1f} to {high:.1f} us; the 95 % bound given the tokens so far; as a whole new sketch {whole:.1f} us"
    done = row(
        "length bound: refine", round(median, 2), "us", "<= 20 us", median <= 20, note, "thesis, §4.1", 7_000.0
    )
    return [*out, done]


def _coverage_rows(lengths: Lengths, model: LengthModel) -> list[Row]:
    judge = lengths.judge
    ours = [f.sketch for f in model.sketches(judge.rows, judge.keys, [float(_LIMIT)] * len(judge.lengths))]
    raw = np.expm1(_peer(lengths.learn).predict(judge.rows, quantiles=list(LEVELS)))
    theirs = [LengthSketch.from_wire(np.maximum.accumulate(values).tolist()) for values in raw]
    bins, peer_bins = list(_bins(ours, judge.lengths)), list(_bins(theirs, judge.lengths))
    worst, peer_worst = min(b[3] for b in bins), min(b[3] for b in peer_bins)
    told = "; ".join(f"{g}: {share:.3f} of {n}" for g, n, share, _, _ in bins[:: max(1, len(bins) // 6)])
    name = "coverage of the nominal 95 % bound, prompts never seen: least lower limit of any bin"
    note = f"{lengths.source}; {len(bins)} bins of {_STEP} tokens with >= {_FEWEST} survivors; {told}"
    out = [
        row(name, round(worst, 3), "share", ">= 0.90", worst >= 0.9, note, "quantile-forest", round(peer_worst, 3))
    ]
    bounds = np.array([sketch.quantile(0.95) for sketch in ours])
    held, over = _held_over(bounds, judge.lengths)
    whole = sum(b[4] * b[1] for b in bins) / sum(b[1] for b in bins)
    for peer_name, peer_bounds in _classifiers(lengths).items():
        peer_held, peer_over = _held_over(peer_bounds, judge.lengths)
        scale = float(np.quantile(judge.lengths / peer_bounds, held))
        note = (
            f"ours holds {held:.3f}, over all moments {whole:.2f} x; as it is, the {peer_name} holds {peer_held:.3f} "
            f"at {peer_over:.2f} x; the value beside ours is what it needs, scaled by {scale:.1f}, to hold as often"
        )
        name = f"over-reservation of the bound against the {peer_name}, at equal coverage"
        out.append(row(name, round(over, 2), "x", "reported", None, note, peer_name, round(peer_over * scale, 2)))
    return out


def _again_rows(data: Path, model: LengthModel, held: set[int]) -> list[Row]:
    """Query again every 50 tokens with the answer's text: does the bound hold at each of these moments, and what does
    that gain over conditioning the first sketch? Trained like the learner, on every other moment."""
    learn, judge = _moments(data, held)
    if not learn or not judge:
        why = f"no answer is longer than {_STEP} tokens"
        return [not_measured("coverage of the nominal 95 % bound asked again every 50 tokens", "share", why)]
    sample = Sample(
        rows=np.stack([known for *_, known in learn]),
        lengths=np.array([float(rest) for _, rest, _ in learn]),
        cut=np.zeros(len(learn), dtype=np.bool_),
        groups=np.array([_group(ask) for ask, *_ in learn], dtype=np.int32),
        keys=tuple(ask.model for ask, *_ in learn),
    )
    keys = [ask.model for ask, *_ in judge]
    rows, rest = np.stack([known for *_, known in judge]), np.array([float(left) for _, left, _ in judge])
    came = np.array([ask.generated for ask, *_ in judge])
    again = fit(sample).sketches(rows, keys, [float(_LIMIT - g) for g in came])
    now = np.array([f.sketch.quantile(0.95) for f in again])
    start = model.sketches(rows[:, : features.WIDTH], keys, [float(_LIMIT)] * len(judge))
    then = np.array([f.sketch.quantile(0.95, g) - g for f, g in zip(start, came.tolist(), strict=True)])
    out = [_again_coverage_row(now, rest, came)]
    (held_then, over_then), (held_now, over_now) = _held_over(then, rest), _held_over(now, rest)
    note = (
        f"holds {held_now:.3f}, conditioned {held_then:.3f}; {len(judge)} moments, every {_STEP} tokens of unseen "
        f"prompts; {len(learn)} moments learnt"
    )
    name = "over-reservation of what remains, asked again with the text"
    return [
        *out,
        row(name, round(over_now, 2), "x", "reported", None, note, "conditioned sketch", round(over_then, 2)),
    ]


def _moments(data: Path, held: set[int]) -> tuple[list[Moment], list[Moment]]:
    """Return moments of answers to learn from, and all moments of held-out prompts."""
    found: dict[bool, list[Moment]] = {False: [], True: []}
    for i, (ask, answer) in enumerate(_answers(data)):
        ends = [word.end() for word in _TOKEN.finditer(answer)]
        first, judged = features.of(ask, _SALT), _group(ask) in held
        for generated in range(_STEP, len(ends), _STEP):
            if judged or learnt_from(str(i), generated):
                now = replace(ask, generated=generated, text=answer[: ends[generated - 1]])
                found[judged].append((now, len(ends) - generated, features.later(first, now)))
    return found[False], found[True]


def _again_coverage_row(bounds: Floats, rest: Floats, came: npt.NDArray[np.int64]) -> Row:
    """Return the smallest lower limit over the moments that at least `_FEWEST` answers reached."""
    held = {g: (rest[came == g] <= bounds[came == g]) for g in np.unique(came).tolist()}
    held = {g: hits for g, hits in held.items() if len(hits) >= _FEWEST}
    name = "coverage of the nominal 95 % bound asked again every 50 tokens, prompts never seen: least lower limit"
    if not held:
        return not_measured(name, "share", f"no moment is reached by {_FEWEST} answers")
    worst = min(_lower(int(hits.sum()), len(hits)) for hits in held.values())
    some = list(held)[:: max(1, len(held) // 6)]
    told = "; ".join(f"{g}: {held[g].mean():.3f} of {len(held[g])}" for g in some)
    return row(name, round(worst, 3), "share", ">= 0.90", worst >= 0.9, f"{len(held)} moments; {told}")


def _lower(held: int, n: int) -> float:
    """Return the one-sided lower 95 % limit (Clopper and Pearson) of a share seen in `n` trials."""
    from scipy.stats import beta

    return float(beta.ppf(0.05, held, n - held + 1)) if held else 0.0


def _bins(sketches: list[LengthSketch], lengths: Floats) -> Iterator[tuple[int, int, float, float, float]]:
    """Yield for each moment: tokens generated, answers still running, share within the bound at that moment, its
    lower 95 % limit (Clopper and Pearson, one-sided), and tokens reserved per token generated."""
    generated = 0
    while (running := np.flatnonzero(lengths > generated)).size >= _FEWEST:
        bounds = np.array([sketches[i].quantile(0.95, generated) for i in running])
        n, held = len(running), int((lengths[running] <= bounds).sum())
        reserved = float((bounds - generated).sum() / (lengths[running] - generated).sum())
        yield generated, n, held / n, _lower(held, n), reserved
        generated += _STEP


def _held_over(bounds: Floats, lengths: Floats) -> tuple[float, float]:
    return float((lengths <= bounds).mean()), float(bounds.sum() / lengths.sum())


def _classifiers(lengths: Lengths) -> dict[str, Floats]:
    """Return what others reserve: the predicted mean, and the upper end of the predicted one of ten buckets (as in
    S3)."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    learn, judge = lengths.learn, lengths.judge
    shared: dict[str, Any] = {"n_estimators": 100, "min_samples_leaf": 5, "max_features": 0.3, "random_state": 0}
    mean = RandomForestRegressor(**shared).fit(learn.rows, learn.lengths).predict(judge.rows)
    edges = np.unique(np.quantile(learn.lengths, np.linspace(0, 1, 11)[1:]))
    bucket = np.searchsorted(edges, learn.lengths)
    chosen = RandomForestClassifier(**shared).fit(learn.rows, bucket).predict(judge.rows)
    return {"mean": mean, "bucket classifier": edges[chosen]}


async def _gap_row(model: LengthModel, kills: int) -> Row:
    """Measure how long no fresh bounds are available after the analyzer is killed with a full state to restore."""
    service = Service()
    service.learner.models = Models(model, None, 1)
    gaps, stale = [], 0
    ask = Ask(model=next(iter(model.seen)), prompt="How long?", limit=_LIMIT, call="probe")
    with tempfile.TemporaryDirectory(prefix="ra-") as folder:
        size = checkpoint.write(Path(folder) / "analyzer.state", checkpoint.snapshot(service))
        async with AnalyzerSupervisor(Path(folder)) as analyzer:
            client = AnalyzerClient(lambda: analyzer.socket, retry_s=0.01)
            for _ in range(kills):
                await client.predict([ask])
                assert analyzer.pid is not None
                os.kill(analyzer.pid, signal.SIGKILL)
                began = time.perf_counter()
                while client.connected:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                while not (await client.predict([ask]))[0].fresh:
                    stale += 1
                    await asyncio.sleep(0.005)
                gaps.append(time.perf_counter() - began)
                while analyzer.pid is None or analyzer.restarts < len(gaps):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await client.aclose()
    median, low, high = statistics.median(gaps), min(gaps), max(gaps)
    state = f"{size / 1e6:.1f} MB of state"
    note = f"{low:.2f} to {high:.2f} s, {kills} kills, {state}; {stale} calls meanwhile got the last bounds"
    return row("analyzer killed: until its bounds are fresh again", round(median, 3), "s", "measured", None, note)


def main() -> None:
    parser = options(__doc__, "fewer repeats")
    parser.add_argument("--data", type=Path, help="a folder of traces")
    asked = parser.parse_args()
    show(rows(asked.quick, asked.data), asked.json)


if __name__ == "__main__":
    run(main)
