"""The timing of a step: which tokens are free, and how a fit changes the costs."""

from __future__ import annotations

import pytest

from benchmarks.replay.inputs.step_times import Held, Timing, terms
from ramify.serving.policy.types import StepModel


def test_a_decode_step_of_a_small_batch_costs_what_the_line_says() -> None:
    step, timing = StepModel(), Timing()
    for sequences in (1, 64, 128):
        held = Held(sequences, 1000 * sequences, sequences)
        assert timing.ms(held) == pytest.approx(step.step_ms(sequences, 1000 * sequences))


def test_the_first_tokens_of_a_step_ride_along_and_prompts_cost_a_graph() -> None:
    timing = Timing(10.0, 0.0, 0.0, 0.1, 2.0)
    assert timing.ms(Held(8, 8, 8)) == 10.0
    assert timing.ms(Held(8, 128, 128)) == 12.0, "120 prompt tokens in the rows that are computed in any case"
    assert timing.ms(Held(8, 228, 228)) == pytest.approx(22.0)
    assert terms(Held(8, 2000, 228)) == (1.0, 8, 2.0, 100, 1.0)


def test_as_much_slower_and_halfway_are_term_by_term() -> None:
    a, b = Timing(1, 2, 3, 4, 5), Timing(3, 4, 5, 6, 7)
    assert a.halfway(b) == Timing(2, 3, 4, 5, 6)
    assert a.scaled(2.0) == Timing(2, 4, 6, 8, 10)
