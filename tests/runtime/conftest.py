"""Tests that run under plans by the code and under learned ones."""

from __future__ import annotations

import pytest
from daring import learned

import ramify.session


@pytest.fixture
def learned_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramify.session, "learned", learned)


@pytest.fixture(params=["by the code", "learned"])
def either_plan(request: pytest.FixtureRequest) -> str:
    """The tests that ask for it run under both kinds of plan."""
    if request.param == "learned":
        request.getfixturevalue("learned_plans")
    return str(request.param)
