"""Train and evaluate the model of learning to rank: how well a prompt tells which of two answers is longer.

    python benchmarks/length_ranker.py --responses DIR --model DIR [--quick] [--json]

A ListMLE head (Xia et al. 2008, as used by Fu et al., NeurIPS 2024) on the mean last hidden state of SmolLM2-135M
over the prompt, next to the request analyzer's median, both trained and evaluated on the same prompts
(`held_out_prompts.py`). `--responses` holds `*.jsonl`, gzipped or not, of prompts and responses; `--model` is a
Hugging Face folder. It needs torch and transformers: run it with vLLM's interpreter. The weights are not kept:
replay needs only the rank correlations, for `Knowledge.correlation` in `replay/types.py` (docs/decisions/055).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.held_out_prompts import group, held_out
from benchmarks.replay.inputs.traces import files_of, response_pairs
from benchmarks.rows import Row, options, printed, report, row, run

Floats = NDArray[np.float64]
_LIST, _EPOCHS, _RATE, _DECAY = 32, 150, 3e-3, 1e-2
_LONGEST = 100_000.0  # characters of an answer


def main() -> None:
    parser = options(__doc__, "100 answers of each model")
    parser.add_argument("--responses", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    given = parser.parse_args()
    most = 100 if given.quick else None
    rows = {
        path.name.partition(".jsonl")[0]: list(
            islice(((pair["prompt"], pair["response"]) for pair in response_pairs(path)), most)
        )
        for path in files_of(given.responses, ".jsonl")
    }
    prompts = sorted({prompt for of in rows.values() for prompt, _ in of})
    seen = dict(zip(prompts, embed(prompts, given.model), strict=True))
    unseen = set(held_out(group(prompt) for prompt in prompts).tolist())
    forest = analyzer(rows, unseen)
    result: list[Row] = []
    for name, of in rows.items():
        x, lengths = np.stack([seen[prompt] for prompt, _ in of]), np.array([len(text) for _, text in of], float)
        held = np.array([group(prompt) in unseen for prompt, _ in of])
        scores = fit(x[~held], lengths[~held])(x[held])
        result.append(
            row(
                f"rank correlation of scores and lengths, {name}",
                round(spearman(scores, lengths[held]), 3),
                "spearman",
                peer="the request analyzer's median",
                peer_value=round(spearman(forest[name], lengths[held]), 3),
                note=f"{int(held.sum())} held-out answers",
            )
        )
        print(printed(result[-1]), flush=True)
    if given.json:
        print(report(result))


def analyzer(rows: Mapping[str, Sequence[tuple[str, str]]], unseen: set[int]) -> dict[str, Floats]:
    """Return the request analyzer's median for each answer to a held-out prompt, by model, in row order."""
    from ramify.serving.lengths import features
    from ramify.serving.lengths.length_model import Sample
    from ramify.serving.lengths.length_model import fit as grow
    from ramify.serving.lengths.types import Ask

    of = {name: [(features.of(Ask(name, p, 8192), 0), p, len(text)) for p, text in of] for name, of in rows.items()}
    learn = [(name, *one) for name, ones in of.items() for one in ones if group(one[1]) not in unseen]
    model = grow(
        Sample(
            rows=np.stack([x for _, x, _, _ in learn]),
            lengths=np.array([float(length) for *_, length in learn]),
            cut=np.zeros(len(learn), dtype=np.bool_),
            groups=np.array([group(prompt) for _, _, prompt, _ in learn], dtype=np.int32),
            keys=tuple(name for name, *_ in learn),
        )
    )
    found = {}
    for name, ones in of.items():
        judged = np.stack([x for x, prompt, _ in ones if group(prompt) in unseen])
        forecasts = model.sketches(judged, [name] * len(judged), [_LONGEST] * len(judged))
        found[name] = np.array([forecast.sketch.quantile(0.5) for forecast in forecasts])
    return found


def embed(prompts: Sequence[str], model: Path) -> Floats:
    """Return the mean of the last hidden state over each prompt's tokens."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).float().eval()
    out = []
    with torch.no_grad():
        for prompt in prompts:
            tokens = tokenizer(prompt, return_tensors="pt", truncation=True, max_length=256)
            out.append(network(**tokens).last_hidden_state[0].mean(0).numpy())
    return np.stack(out).astype(float)


class Head:
    """Scores prompts linearly in the standardised embedding: the smaller, the shorter the answer."""

    def __init__(self, x: Floats) -> None:
        self._mean, self._spread = x.mean(0), x.std(0) + 1e-6
        self.weights = np.zeros(x.shape[1])

    def scaled(self, x: Floats) -> Floats:
        standard: Floats = (x - self._mean) / self._spread
        return standard

    def __call__(self, x: Floats) -> Floats:
        scores: Floats = self.scaled(x) @ self.weights
        return scores


def fit(x: Floats, lengths: Floats, seed: int = 0) -> Head:
    """Fit ListMLE by Adam over random lists: the likelihood of the true order, longest first (Plackett-Luce)."""
    head, chance = Head(x), np.random.default_rng(seed)
    z, weights = head.scaled(x), head.weights
    mean, square, steps = np.zeros_like(weights), np.zeros_like(weights), 0
    for _ in range(_EPOCHS):
        shuffled = chance.permutation(len(z))
        for begin in range(0, len(z) - _LIST + 1, _LIST):
            chosen = shuffled[begin : begin + _LIST]
            ordered = z[chosen[np.argsort(-lengths[chosen], kind="stable")]]
            slope = ordered.T @ list_mle_slope(ordered @ weights) / _LIST + _DECAY * weights
            steps += 1
            mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
            weights -= _RATE * (mean / (1 - 0.9**steps)) / (np.sqrt(square / (1 - 0.999**steps)) + 1e-8)
    return head


def list_mle_slope(scores: Floats) -> Floats:
    """Return the gradient, by score, of the negative log-likelihood of the order of the scores."""
    risen = np.exp(scores - scores.max())
    behind = np.cumsum(risen[::-1])[::-1]  # of each place and all after it
    slope: Floats = risen * np.cumsum(1.0 / behind) - 1.0
    return slope


def spearman(a: Floats, b: Floats) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


if __name__ == "__main__":
    run(main)
