"""Step-time models: how long one engine step takes.

`Steps` is a model with its source, stored as a file:

{"model": "…", "device": "…", "source": "…", "fitted": "…",
 "step": {"base_ms": 4.1, "per_seq_ms": 0.0055, "per_kctx_ms": 0.0334, "per_prefill_ms": 0.0185}}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from benchmarks.replay.errors import BadSteps
from ramify.serving.policy.types import StepModel

SHIPPED = Path(__file__).resolve().parents[2] / "data" / "h200-llama-3.1-8b.json"
_PULL = 1e-4  # weight of the prior beside the spans
_NAMES = ("base_ms", "per_seq_ms", "per_kctx_ms", "per_prefill_ms")


@dataclass(frozen=True, slots=True)
class Steps:
    step: StepModel
    model: str
    device: str
    source: str  # of the times: a publication, a measured run or a server
    fitted: str  # how the model was fitted

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({**asdict(self)}, indent=2) + "\n", encoding="utf-8")


def load(path: Path = SHIPPED) -> Steps:
    """Read a step-time model. Raises BadSteps, naming the field."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        step = {name: float(raw["step"][name]) for name in _NAMES}
        texts = [str(raw[name]) for name in ("model", "device", "source", "fitted")]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadSteps(f"{path}: not a step-time model: {error!r}; see {SHIPPED} for its shape") from error
    if step["base_ms"] <= 0 or min(step.values()) < 0:
        raise BadSteps(f"{path}: a step takes time: base_ms must be above 0 and none below, got {step}")
    return Steps(StepModel(**step), *texts)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of measured time, and the sums of what the steps in it held."""

    seconds: float
    steps: float
    sequences: float
    kcontext: float  # thousands of tokens of context
    prefill: float


def fit(spans: Sequence[Span], like: StepModel) -> StepModel:
    """Return the linear model with the least squared relative error over the spans.

    In a batch that is always full, the fixed part and the part of the sequences cannot be told apart. So each term
    is drawn weakly towards `like`, scaled as a whole to match. A term that would be negative is 0. Raises BadSteps
    if there are fewer spans than terms.
    """
    if len(spans) < len(_NAMES):
        raise BadSteps(f"{len(spans)} measured spans: a step-time model of {len(_NAMES)} terms needs as many")
    sums = [(s.steps, s.sequences, s.kcontext, s.prefill) for s in spans]
    return StepModel(*least(sums, [s.seconds * 1000 for s in spans], [getattr(like, name) for name in _NAMES]))


def least(sums: Sequence[Sequence[float]], took: Sequence[float], like: Sequence[float]) -> list[float]:
    """Return the costs, none negative, with which each row of `sums` comes nearest to what it `took` (see `fit`)."""
    import numpy as np

    prior = np.array(like)
    rows = np.array(sums) * prior / np.array(took)[:, None]
    whole = rows.sum(axis=1)
    factor = float(whole.sum() / (whole @ whole))  # `like` fits best when it is scaled by this
    pull = np.sqrt(_PULL * len(rows)) * np.eye(len(prior))
    kept = list(range(len(prior)))
    while True:
        matrix = np.vstack([rows[:, kept], pull[:, kept]])
        goal = np.concatenate([np.ones(len(rows)), factor * pull.diagonal()])
        found, *_ = np.linalg.lstsq(matrix, goal, rcond=None)
        if found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    values = np.zeros(len(prior))
    values[kept] = found * prior[kept]
    return [float(value) for value in values]


_ROWS = 128  # tokens of a step that cost nothing


@dataclass(frozen=True, slots=True)
class Held:
    """What one step holds."""

    sequences: int
    context: int  # tokens, summed over the sequences
    tokens: int  # scheduled tokens of prompts and answers

    @property
    def prefill(self) -> int:
        return max(0, self.tokens - self.sequences)


@dataclass(frozen=True, slots=True)
class Timing:
    """The step time of a measured run: `StepModel` with two terms more (docs/decisions/055).

    The first tokens of a step cost almost nothing: the weights are read in any case, and a matrix kernel works on
    many rows at once. And a step with prompt tokens is not replayed as one captured graph. Without these terms a
    fit takes from the fixed part what it gives to prompt tokens, and small batches come out too fast. The defaults
    are those of `StepModel`; the last is a quarter of the fixed part.
    """

    base_ms: float = 4.1
    per_seq_ms: float = 0.0055
    per_kctx_ms: float = 0.0334
    per_token_ms: float = 0.0185  # for each token beyond the first 128
    prompt_ms: float = 1.0  # if the step holds any prompt tokens

    def ms(self, held: Held) -> float:
        costs: tuple[float, ...] = astuple(self)
        return sum(cost * much for cost, much in zip(costs, terms(held), strict=True))

    def scaled(self, factor: float) -> Timing:
        """Return the timing of an engine that is `factor` times slower."""
        return Timing(*(cost * factor for cost in astuple(self)))

    def halfway(self, other: Timing) -> Timing:
        return Timing(*((a + b) / 2 for a, b in zip(astuple(self), astuple(other), strict=True)))


def terms(held: Held) -> tuple[float, float, float, float, float]:
    """Return how often each cost of a Timing counts, in the order of its fields."""
    return 1.0, held.sequences, held.context / 1000, max(0, held.tokens - _ROWS), float(held.prefill > 0)
