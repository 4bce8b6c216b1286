"""Calls that the workflow cancels while their results are being recorded: a resume cancels them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import late_app
import pytest

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.fork_engine import crash_points
from ramify.runtime.errors import RunFailed
from ramify.runtime.records import OpStatus
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel

TEXT = " ".join(["word"] * 40)


@pytest.mark.parametrize(
    ("flow", "point"),
    [
        (late_app.of_a_step, "rows numbered"),
        (late_app.of_a_step, "rows durable"),
        (late_app.of_a_model_call, "answer numbered"),
        (late_app.of_a_reader, "answer durable"),
        (late_app.of_a_fork, "rows durable"),
        (late_app.of_a_merge, "rows durable"),
    ],
)
async def test_a_timeout_during_the_commit_passes_again_at_a_resume(
    home: Path, monkeypatch: pytest.MonkeyPatch, flow: Any, point: str
) -> None:
    """The workflow went on because of the timeout, and paid."""
    late_app.PAID.clear()
    late_app.LIMITS.clear()

    def pass_now(name: str) -> None:
        if name == point and late_app.LIMITS:
            late_app.LIMITS.pop().reschedule(0)

    monkeypatch.setattr(late_app, "STOPS", True)
    monkeypatch.setattr(crash_points, "at", pass_now)
    model = ScriptedModel(lambda request: TEXT)
    async with (
        LLMClient("http://model.test/v1", transport=model, retries=0) as client,
        Runtime(home=home, sandbox="copy", llm=client) as runtime,
    ):
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.run(flow)
        assert not late_app.LIMITS, "the timeout passed at the point"
        run, paid = str(runtime.last_run_id), list(late_app.PAID)
        assert len(paid) == 1
        assert paid[0].endswith("late")
        monkeypatch.setattr(late_app, "STOPS", False)
        monkeypatch.setattr(late_app, "PATIENCE_S", 0.3)
        monkeypatch.setattr(crash_points, "at", None)
        assert await runtime.resume(run) == paid[0]
        assert paid == late_app.PAID
        rows = [row.status for row in await runtime.journal(run) if row.kind is OpKind.RUN and row.step == "write"]
    assert rows == ([OpStatus.DONE, OpStatus.FAILED] if flow is late_app.of_a_step else [])
