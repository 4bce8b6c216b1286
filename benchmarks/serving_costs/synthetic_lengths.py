"""Synthetic traffic for tests and quick benchmarks: lengths that depend on the prompt, with runaways. No real
text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from ramify.serving.lengths import features
from ramify.serving.lengths.length_model import Sample
from ramify.serving.lengths.pattern_graph import Kind, Node, PatternGraph, linked
from ramify.serving.lengths.types import Ask

SALT = 7
_KINDS = (  # the prompt, the median of its answers' lengths, their spread (of the logarithm)
    ("Write a long story about {} and {}.", 700.0, 0.35),
    ("What is {}? Answer in one sentence about {}.", 30.0, 0.4),
    ("List 10 facts about {} and {}:", 250.0, 0.3),
    ("Translate to French: {} {}", 12.0, 0.6),
)
_WORDS = ("river", "stone", "cloud", "engine", "violin", "market", "winter", "copper", "garden", "signal", "harbour")


def traffic(count: int, seed: int, *, model: str = "small") -> list[tuple[Ask, int]]:
    """Asks and the lengths of their answers. One answer in thirty runs on to four times its length."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        text, median, spread = rng.choice(_KINDS)
        prompt = text.format(rng.choice(_WORDS), rng.choice(_WORDS)) + " " + rng.choice(_WORDS)
        length = median * rng.lognormvariate(0, spread) * (4 if rng.random() < 1 / 30 else 1)
        out.append((Ask(model=model, prompt=prompt, limit=8_192, call=f"{seed}-{i}"), max(1, round(length))))
    return out


def sample_of(asks: Sequence[tuple[Ask, int]]) -> Sample:
    """This traffic as a ring would hold it. Each ask counts as a prompt of its own."""
    return Sample(
        rows=np.stack([features.of(ask, SALT) for ask, _ in asks]),
        lengths=np.array([float(length) for _, length in asks]),
        cut=np.zeros(len(asks), dtype=np.bool_),
        groups=np.arange(len(asks), dtype=np.int32),
        keys=tuple(ask.model for ask, _ in asks),
    )


def research(seed: int, *, searches: int | None = None) -> PatternGraph:
    """A compound request as in the thesis's figure 4.2: a plan, then searches and drafts, then a report. The length
    of the plan tells how many rounds there are."""
    rng = random.Random(seed)
    rounds = searches if searches is not None else rng.randint(2, 6)
    stages = [[Node(Kind.LLM, "planner", 0, 300, rounds * 80 + rng.randint(-15, 15), rounds * 1.2)]]
    for _ in range(rounds):
        tool = Node(Kind.TOOL, "search", 0, seconds=rng.uniform(1, 2))
        stages.append([tool, *(Node(Kind.LLM, "drafter", 0, 1_500, rng.randint(150, 250), 3.0) for _ in range(3))])
    stages.append([Node(Kind.LLM, "writer", 0, 4_000, rounds * 300, rounds * 4.5)])
    return linked(stages)
