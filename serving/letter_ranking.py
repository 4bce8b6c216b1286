"""Rank options by letters: the model picks one of several lettered options, and its log-probabilities rank them all.

This works on every OpenAI-compatible server, because it needs only the `top_logprobs` of one generated token.
(Scoring a given text needs `echo`, which llama.cpp's family refuses.) A small model favours early letters: where that
matters, rank the same options in more than one order."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from ramify.serving.errors import LLMError
from ramify.serving.types import ChatRequest, ChatResult, user

MAX_OPTIONS = 20  # OpenAI gives at most 20 top_logprobs
LETTERS = string.ascii_uppercase[:MAX_OPTIONS]
_FLOOR_MARGIN = 1.0  # nats: an unseen letter is put so far below the least likely token seen


def letter_request(
    question: str, options: Sequence[str], *, system: str | None = None, model: str = "default"
) -> ChatRequest:
    """A request that asks which option answers the question: A) …, B) …. Its only token carries all the scores.

    The question comes first, so that calls with the same question share a cacheable prefix.
    """
    if not 1 <= len(options) <= MAX_OPTIONS:
        raise ValueError(f"{len(options)} options: give 1 to {MAX_OPTIONS}, or rank in rounds")
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    prompt = f"{question}\n\n{listed}\n\nAnswer with the letter of the best option only."
    return ChatRequest(
        messages=user(prompt, system=system), model=model, max_tokens=1, temperature=0.0, top_logprobs=MAX_OPTIONS
    )


def letter_scores(result: ChatResult, n: int) -> tuple[float, ...]:
    """The natural-log probability of each of the n options.

    All spellings of a letter ("A", " a", "A)") count together. A letter that is not among the most likely tokens gets
    a floor a little below the least likely token seen. Raises LLMError if the server gave no log-probabilities.
    """
    if not 1 <= n <= MAX_OPTIONS:
        raise ValueError(f"{n} options: there are 1 to {MAX_OPTIONS}")
    if not result.logprobs:
        raise LLMError(
            f"model {result.model!r} returned no log-probabilities, so options cannot be ranked by it: "
            "use a server that supports `top_logprobs`"
        )
    first = result.logprobs[0]
    likely = {first.token: first.logprob, **dict(first.top)}
    seen = {token: logprob for token, logprob in likely.items() if math.isfinite(logprob)}
    floor = min(seen.values(), default=0.0) - _FLOOR_MARGIN
    by_letter: dict[str, list[float]] = {}
    for token, logprob in seen.items():
        by_letter.setdefault(token.strip().rstrip(").:").upper(), []).append(logprob)
    return tuple(_log_sum_exp(by_letter[letter]) if letter in by_letter else floor for letter in LETTERS[:n])


def _log_sum_exp(values: Sequence[float]) -> float:
    peak = max(values)
    return peak + math.log(sum(math.exp(v - peak) for v in values))
