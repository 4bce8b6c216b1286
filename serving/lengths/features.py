"""Features of a call: hashed words of the prompt, its shape, who asks which model, and how far the answer is.

Hashing is one-way. Each word falls into one of `WORDS` buckets by a salted hash, and only the normalised counts of
the buckets leave this module, so the text cannot be read back from what is kept. There are no TF-IDF weights, because
the splits of a tree do not change when a column is scaled.
"""

from __future__ import annotations

import re
import zlib
from itertools import pairwise
from math import log1p, sqrt

import numpy as np
import numpy.typing as npt

from ramify.serving.lengths.types import Ask

Matrix = npt.NDArray[np.float32]

WORDS = 256
_NAMES = 16  # buckets for the model, and as many for the application
_END = 4_000  # characters looked at, from each end of a text
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d{1,6}")
_LIST_ITEM = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s", re.MULTILINE)
_HEADING = re.compile(r"^(?:#{1,6}\s|\*\*[^*\n]+\*\*:?$)", re.MULTILINE)
_CLOSING = re.compile(
    r"\b(?:in conclusion|in summary|overall|finally|i hope|let me know|enjoy|sincerely|regards)\b", re.I
)
_SHAPE = 14
_PROGRESS = 12
WIDTH = WORDS + _SHAPE + 2 * _NAMES
WIDTH_LATER = WIDTH + _PROGRESS


def ends_of(text: str) -> str:
    """The part of a text that is looked at: its beginning and its end tell enough."""
    return text if len(text) <= 2 * _END else text[:_END] + "\n" + text[-_END:]


def of(ask: Ask, salt: int) -> Matrix:
    """The features of a call before its first token: `WIDTH` numbers."""
    text = ends_of(ask.prompt)
    words = _WORD.findall(text.lower())
    row = np.zeros(WIDTH, dtype=np.float32)
    row[:WORDS] = _hashed(words, salt)
    numbers = [int(n) for n in _NUMBER.findall(text)]
    stripped = text.rstrip()
    row[WORDS : WORDS + _SHAPE] = (
        log1p(len(ask.prompt)),
        log1p(len(words)),
        sum(map(len, words)) / max(1, len(words)),
        text.count("\n"),
        text.count("?"),
        stripped.endswith("?"),
        stripped.endswith(":"),
        "```" in text or "def " in text,
        log1p(max(numbers, default=0)),
        len(numbers),
        _hash(words[0], salt) % 64 if words else -1,
        ask.stage,
        log1p(ask.prompt_tokens),
        ask.messages,
    )
    names = WORDS + _SHAPE
    row[names + _hash(ask.model, salt) % _NAMES] = 1
    row[names + _NAMES + _hash(ask.app, salt) % _NAMES] = 1
    return row


def prompt_id(prompt: str, salt: int) -> int:
    """A number that tells prompts apart."""
    return _hash(ends_of(prompt), salt)


def later(first: Matrix, ask: Ask) -> Matrix:
    """The features in the middle of an answer: those of its beginning, then how far it has come."""
    text = ends_of(ask.text)
    tail = text[-400:]
    items = len(_LIST_ITEM.findall(text))
    blocks = text.split("\n\n")
    row = np.empty(WIDTH_LATER, dtype=np.float32)
    row[:WIDTH] = first
    row[WIDTH:] = (
        ask.generated,
        len(ask.text) / max(1, ask.generated),
        items,
        len(blocks),
        len(blocks[-1]),
        len(_HEADING.findall(text)),
        text.count("```") % 2,
        len(_CLOSING.findall(tail)),
        bool(_LIST_ITEM.search(tail)),
        text.count("\n"),
        _last_number(text),
        tail.rstrip()[-1:] in (".", "!", "?", ")", "`"),
    )
    return row


def generated(rows: Matrix) -> npt.NDArray[np.float64]:
    """How far each answer had come, from rows that `later` made."""
    return rows[:, WIDTH].astype(np.float64)


def _hash(text: str, salt: int) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), salt)  # JSON may hold half a surrogate pair


def _hashed(words: list[str], salt: int) -> Matrix:
    """Counts of words, and with half the weight of pairs of neighbours, in buckets; normalised to length one."""
    codes = [_hash(word, salt) for word in words]
    pairs = [(a * 31 + b) % WORDS for a, b in pairwise(codes)]
    counts = np.bincount([code % WORDS for code in codes], minlength=WORDS).astype(np.float32)
    if pairs:
        counts += 0.5 * np.bincount(pairs, minlength=WORDS)
    norm = sqrt(float(counts @ counts))
    return counts / norm if norm else counts


def _last_number(text: str) -> int:
    """The number that a numbered list has reached."""
    for line in reversed(text.splitlines()[-40:]):
        if found := re.match(r"\s*(?:\*\*)?(\d{1,3})[.)]", line):
            return int(found[1])
    return 0
