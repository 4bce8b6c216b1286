"""Fixtures shared by the analyzer's tests."""

from __future__ import annotations

import pytest

from ramify.serving.lengths.length_model import LengthModel, fit
from ramify.serving.lengths.testing import sample_of, traffic


@pytest.fixture(scope="session")
def model() -> LengthModel:
    """Fitted once: it takes seconds."""
    return fit(sample_of(traffic(600, seed=1)), trees=30)
