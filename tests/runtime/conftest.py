"""Fixtures: plans from the code and learned plans, for tests that run under both; and the receiver of effects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import effects_app
import pytest
from daring import learned

import ramify.new_runs


@pytest.fixture
def learned_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramify.new_runs, "learned", learned)


@pytest.fixture(params=["by the code", "learned"])
def either_plan(request: pytest.FixtureRequest) -> str:
    """Tests that use it run under both kinds of plan."""
    if request.param == "learned":
        request.getfixturevalue("learned_plans")
    return str(request.param)


@pytest.fixture
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "outbox"
    monkeypatch.setattr(effects_app, "OUTBOX", path)
    effects_app.STOP.clear()
    effects_app.UNDONE.clear()
    yield path
    effects_app.STOP.clear()
