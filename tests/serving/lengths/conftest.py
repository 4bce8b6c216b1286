"""Fixtures shared by the analyzer's tests."""

from __future__ import annotations

import pytest

from benchmarks.serving_costs.synthetic_lengths import sample_of, traffic
from ramify.serving.lengths.length_model import LengthModel, fit


@pytest.fixture(scope="session")
def model() -> LengthModel:
    """Fitted once: it takes seconds."""
    return fit(sample_of(traffic(600, seed=1)), trees=30)
