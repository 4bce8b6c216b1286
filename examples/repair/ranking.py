"""Ranks the edits: which to try first.

score = log of prior(kind) x hints x share of the kind's mass. An edit's share is its weight x the suspicion of its
line, over the sum of that among edits of its kind. So a kind with few places in a file gets a chance early, whatever
the others do.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .edits import Edit, View, apply_edit, every_edit
from .localise import facts
from .source import Source
from .suite import Survey

# How often a small bug is of each kind: estimated, and smoothed by the development corpus.
PRIOR = {
    "comparison": 13, "off by one": 8, "constant": 6, "arithmetic": 8, "and/or": 10, "negation": 4, "variable": 6,
    "augmented assignment": 5, "swapped arguments": 6, "swapped operands": 3, "dropped term": 4, "grouping": 2,
    "rounding": 1.5, "dropped condition": 3, "swapped conditions": 1.5, "sign": 6, "string": 5, "truth value": 5,
    "initial value": 5, "range": 4, "slice": 7, "offset": 2, "factor": 2.7, "renaming": 2.3, "unread name": 8, "star": 2.5, "default": 5, "mirrored statement": 6, "clamp": 2, "constant for variable": 3.5, "stale": 8, "normalised": 3, "guarded statement": 2.5, "mirrored call": 5, "None check": 3, "attribute": 4.5, "function": 8, "exception": 3,
    "method": 5, "dropped argument": 2, "added argument": 5, "wrapped value": 3.5, "unwrapped value": 2.5,
    "recursion": 3, "copy": 3.5, "lookup": 5.5, "swapped items": 5, "removed statement": 2.5, "swapped statements": 2.5,
    "moved statement": 4.5, "exit": 4.5, "branching": 3, "return": 3.5, "unkept result": 3, "missing update": 6,
    "repeated statement": 4.5, "after the loop": 3, "missing return": 3, "missing exit": 3, "missing guard": 5,
    "added condition": 3.5, "other condition": 1.5, "shared default": 12, "shared attribute": 8, "shared row": 10,
    "late binding": 6, "walked copy": 3, "declaration": 2, "model": 4,
}  # fmt: skip

# What the form of a failure says about the kind.
HINTS = {
    "one off": {"off by one": 2.5, "comparison": 1.7, "constant": 1.5, "range": 1.7, "initial value": 1.5, "slice": 1.5, "dropped term": 1.3},
    "negated": {"negation": 2, "comparison": 1.3, "and/or": 1.5, "truth value": 2, "missing exit": 1.3},
    "sign": {"sign": 3, "swapped operands": 2, "arithmetic": 1.3},
    "rounding": {"arithmetic": 1.6, "rounding": 3, "wrapped value": 1.3, "function": 1.3, "added argument": 1.5},
    "none": {"missing return": 5, "return": 2, "recursion": 2, "unkept result": 2, "moved statement": 1.5},
    "other type": {"wrapped value": 2.5, "unwrapped value": 2, "return": 1.5, "initial value": 1.3},
    "case": {"wrapped value": 2, "method": 2, "unwrapped value": 2}, "space": {"string": 2, "method": 1.5, "wrapped value": 1.5},
    "missing": {"after the loop": 2, "missing update": 1.5, "range": 1.5, "off by one": 1.3, "moved statement": 1.5, "slice": 1.3, "exit": 1.5, "copy": 1.2},
    "extra": {"range": 1.3, "missing guard": 1.5, "missing update": 1.5, "added condition": 1.5, "slice": 1.3, "missing exit": 1.3, "shared default": 1.5, "copy": 1.3},
    "order": {"sign": 2, "swapped items": 2, "swapped operands": 1.5, "wrapped value": 1.5, "added argument": 2.5, "dropped argument": 2, "method": 1.7, "swapped statements": 1.5, "comparison": 1.3},
    "reversed": {"added argument": 2, "slice": 1.5, "method": 2, "range": 1.5, "swapped operands": 1.5, "sign": 1.5},
    "no raise": {"missing guard": 4, "comparison": 1.5, "dropped condition": 1.3, "added condition": 1.5, "exception": 2, "removed statement": 1.2},
    "timeout": {"missing update": 4, "augmented assignment": 2, "comparison": 1.5, "arithmetic": 1.5, "constant": 1.3, "repeated statement": 1.5, "exit": 1.5, "off by one": 1.3},
    "raised RecursionError": {"missing guard": 4, "swapped arguments": 2, "constant": 1.5, "comparison": 1.3, "other condition": 1.3, "arithmetic": 1.3},
    "raised IndexError": {"missing guard": 1.7, "off by one": 1.7, "comparison": 1.7, "constant": 1.5, "range": 1.7, "swapped conditions": 3, "added condition": 2},
    "raised KeyError": {"lookup": 3, "missing guard": 1.5, "added condition": 1.5, "exception": 2, "method": 1.3},
    "raised TypeError": {"wrapped value": 1.7, "unwrapped value": 1.7, "missing return": 2, "initial value": 1.5, "added argument": 1.5, "unkept result": 2, "swapped arguments": 1.7, "recursion": 1.3, "missing guard": 1.3},
    "raised AttributeError": {"attribute": 2, "method": 2, "missing guard": 1.7, "added condition": 2, "None check": 1.3, "swapped arguments": 1.3, "missing update": 1.3, "declaration": 2},
    "raised UnboundLocalError": {"moved statement": 2, "repeated statement": 2, "declaration": 5, "initial value": 1.3},
    "raised NameError": {"variable": 3, "attribute": 3, "declaration": 2}, "raised ZeroDivisionError": {"missing guard": 4, "range": 1.5, "constant": 1.3, "comparison": 1.3},
    "raised ValueError": {"missing guard": 1.7, "exception": 1.5, "wrapped value": 1.2, "added argument": 1.5, "string": 1.3}, "raised RuntimeError": {"walked copy": 6, "copy": 2},
}  # fmt: skip

SUSPICION = 2.2  # exponent of a line's suspicion
SHARING = 0.25  # 1: all edits of a kind share its mass; 0: each edit has the whole of it


@dataclass(frozen=True, slots=True)
class Candidate:
    """An edit of a program that is worth a world. `score` is a natural log; only differences are meaningful."""

    program: str
    edit: Edit
    shown: str  # the edit as a one-line diff
    score: float

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True)
class Pool:
    """The likeliest candidates, best first, and roughly how many candidates there are in all."""

    head: tuple[Candidate, ...]
    size: int


def candidates(survey: Survey, own: Sequence[Edit] = (), limit: int = 400) -> Pool:
    """Return the likeliest edits that could fix the failures. `own` are edits from elsewhere, such as the model's.

    Edits that give the same program, apart from comments and layout, count once. Edits that do not parse do not
    count.
    """
    edits: list[Edit] = list(own)
    suspicion: dict[str, dict[int, float]] = {}
    hints: set[str] = set()
    for path, text in survey.sources.items():
        source = Source(path, text)
        known = facts(survey, source)
        suspicion[path] = known.suspicion
        hints |= known.hints
        if known.suspicion:
            edits += every_edit(View(source, known))
    texts: dict[tuple[str, str], tuple[Edit, float]] = {}
    for edit, score in rank(edits, suspicion, hints):
        texts.setdefault((edit.path, apply_edit(survey.sources[edit.path], edit)), (edit, score))
    seen = 0
    head: list[Candidate] = []
    for candidate in _distinct(survey, texts):
        seen += 1
        if candidate is not None:
            head.append(candidate)
        if len(head) == limit:
            break
    return Pool(tuple(head), round(len(texts) * len(head) / seen) if seen else 0)


def _distinct(survey: Survey, texts: dict[tuple[str, str], tuple[Edit, float]]) -> Iterator[Candidate | None]:
    """Return the candidate for each text; None if it does not parse or occurred before."""
    known = {(path, ast.dump(ast.parse(text))) for path, text in survey.sources.items()}
    for (path, text), (edit, score) in texts.items():
        try:
            key = (path, ast.dump(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError):
            yield None
            continue
        if key in known:
            yield None
            continue
        known.add(key)
        yield Candidate(survey.suite.program, edit, shown(survey.sources[path], text, edit), score)


def shown(old: str, new: str, edit: Edit) -> str:
    """`gcd.py:5: return gcd(a % b, b) → return gcd(b, a % b)`."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    gone, come = [], []
    line = 0
    for text in lines:
        if text.startswith("@@"):
            line = line or int(text.split()[1].lstrip("-").split(",")[0])
        elif text.startswith("-") and not text.startswith("---"):
            gone.append(text[1:].strip())
        elif text.startswith("+") and not text.startswith("+++"):
            come.append(text[1:].strip())
    before, after = " ⏎ ".join(gone), " ⏎ ".join(come)
    what = f"{before} → {after}" if gone and come else f"add {after}" if come else f"remove {before}"
    return f"{edit.path}:{line or edit.line}: {what}"


def rank(
    edits: Sequence[Edit], suspicion: dict[str, dict[int, float]], hints: Iterable[str]
) -> list[tuple[Edit, float]]:
    """Return the edits with their scores, best first. Scores are natural logs; only differences are meaningful.

    Ties keep their order.
    """
    factors = kind_factors(hints)
    masses = [edit.weight * max(near(suspicion.get(edit.path, {}), edit.line), 1e-3) ** SUSPICION for edit in edits]
    sums: dict[str, float] = {}
    for edit, mass in zip(edits, masses, strict=True):
        sums[edit.kind] = sums.get(edit.kind, 0.0) + mass
    scored = [
        (
            edit,
            math.log(PRIOR[edit.kind] * factors.get(edit.kind, 1.0) * max(mass, 1e-9))
            - SHARING * math.log(sums[edit.kind] + 1e-9),
        )
        for edit, mass in zip(edits, masses, strict=True)
    ]
    return sorted(scored, key=lambda pair: -pair[1])


MODEL_WEIGHT = 0.3  # weight of the model's log-probabilities, relative to the prior's


def combine(head: Sequence[Candidate], votes: Sequence[float]) -> list[Candidate]:
    """Return the head of the list in the order of prior and votes together; unchanged if there are no votes."""
    if not votes:
        return list(head)
    mean = sum(votes) / len(votes)
    scores = [one.score + MODEL_WEIGHT * (vote - mean) for one, vote in zip(head, votes, strict=True)]
    return [one for _, one in sorted(zip(scores, head, strict=True), key=lambda pair: -pair[0])]


def kind_factors(hints: Iterable[str]) -> dict[str, float]:
    factors: dict[str, float] = {}
    for hint in hints:
        for kind, factor in HINTS.get(hint, {}).items():
            factors[kind] = max(factors.get(kind, 1.0), factor)
    return factors


def near(scores: dict[int, float], line: int) -> float:
    """Return a line's suspicion. A line that nothing ran takes a little less than its neighbours'."""
    if line in scores:
        return scores[line]
    return 0.7 * max(scores.get(line - 1, 0.0), scores.get(line + 1, 0.0), scores.get(line - 2, 0.0), 0.05)
