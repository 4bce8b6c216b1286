"""Features have a fixed width, are equal for equal calls, and do not reveal the text."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.lengths import features
from ramify.serving.lengths.types import Ask


@given(st.text(max_size=400), st.text(max_size=400), st.integers(1, 5_000))
def test_features_are_finite_and_of_fixed_width(prompt: str, answer: str, generated: int) -> None:
    ask = Ask(model="m", prompt=prompt, limit=100, generated=generated, text=answer)
    first = features.of(ask, 1)
    later = features.later(first, ask)
    assert first.shape == (features.WIDTH,)
    assert later.shape == (features.WIDTH_LATER,)
    assert np.isfinite(later).all()


def test_salt_decides_the_bucket_of_a_word() -> None:
    ask = Ask(model="m", prompt="the capital of France", limit=100)
    assert (features.of(ask, 1) == features.of(ask, 1)).all()
    assert (features.of(ask, 1)[: features.WORDS] != features.of(ask, 2)[: features.WORDS]).any()


def test_only_the_ends_of_a_long_text_count() -> None:
    text = "a" * 10_000 + "b" * 10_000
    assert len(features.ends_of(text)) == 8_001
    assert features.ends_of(text)[0] == "a"
    assert features.ends_of(text)[-1] == "b"
    assert features.ends_of("short") == "short"


def test_list_in_the_answer_is_detected() -> None:
    ask = Ask(model="m", prompt="List ten.", limit=100, generated=40, text="Here:\n\n1. one\n2. two\n3. three")
    later = features.later(features.of(ask, 1), ask)[features.WIDTH :]
    assert 3 in later.tolist()
    assert later[10] == 3  # the last number
