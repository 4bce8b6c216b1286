"""Fixtures shared by the tests of serving."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.paths import home as ramify_home
from ramify.serving.engine import models
from ramify.serving.errors import ModelMissing


@pytest.fixture(scope="session")
def weights() -> Path:
    try:
        return models.locate(ramify_home(None))
    except ModelMissing as missing:
        pytest.skip(str(missing))
