"""What the analyzer's tests share."""

from __future__ import annotations

import pytest

from ramify.serving.analyzer.lengths import LengthModel, fit
from ramify.serving.analyzer.testing import sample_of, traffic


@pytest.fixture(scope="session")
def model() -> LengthModel:
    """Fitted once: it takes seconds."""
    return fit(sample_of(traffic(600, seed=1)), trees=30)
