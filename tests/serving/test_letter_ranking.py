"""Ranking by letters, on hand-made log-probabilities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.client import LLMClient
from ramify.serving.errors import LLMError
from ramify.serving.letter_ranking import LETTERS, letter_request, letter_scores
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatResult, TokenLogprobs


def result(**top: float) -> ChatResult:
    pairs = tuple((token.replace("_", " "), p) for token, p in top.items())
    return ChatResult("A", "length", "m", logprobs=(TokenLogprobs(*pairs[0], pairs),))


def test_options_are_lettered_after_the_question() -> None:
    request = letter_request("Which?", ["red", "blue"], system="Choose.", model="m")
    assert [m.role for m in request.messages] == ["system", "user"]
    assert request.messages[1].content.startswith("Which?\n\nA) red\nB) blue\n")
    assert (request.max_tokens, request.top_logprobs, request.temperature) == (1, 20, 0.0)


@pytest.mark.parametrize("n", [0, 21])
def test_too_few_or_too_many_options_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="options"):
        letter_request("Which?", ["x"] * n)
    with pytest.raises(ValueError, match="options"):
        letter_scores(result(A=-1.0), n)


def test_spellings_of_a_letter_count_together_and_an_unseen_letter_gets_the_floor() -> None:
    scores = letter_scores(result(A=math.log(0.2), _a=math.log(0.1), **{"A)": math.log(0.1), "The": -3.0}, B=-1.0), 3)
    assert scores == (pytest.approx(math.log(0.4)), pytest.approx(-1.0), pytest.approx(-4.0))


def test_impossible_token_does_not_become_the_floor() -> None:
    assert letter_scores(result(A=-1.0, B=-math.inf), 2) == (-1.0, -2.0)


def test_missing_logprobs_error_says_what_to_do() -> None:
    with pytest.raises(LLMError, match="top_logprobs"):
        letter_scores(ChatResult("A", "stop", "m"), 2)


@given(st.dictionaries(st.sampled_from(LETTERS), st.floats(-30, -0.01), min_size=1))
def test_ranking_follows_the_logprobs(seen: dict[str, float]) -> None:
    scores = dict(zip(LETTERS, letter_scores(result(**seen), len(LETTERS)), strict=True))
    assert sorted(seen, key=seen.__getitem__) == sorted(seen, key=scores.__getitem__)
    assert all(scores[unseen] < min(seen.values()) for unseen in set(LETTERS) - set(seen))


async def test_scripted_preferences_are_ranked() -> None:
    model = ScriptedModel(lambda _: {"B": 3, "A": 1})
    async with LLMClient("http://model", transport=model) as client:
        answer = await client.chat(letter_request("Which?", ["red", "blue"]))
    assert letter_scores(answer, 2) == (pytest.approx(math.log(0.25)), pytest.approx(math.log(0.75)))
