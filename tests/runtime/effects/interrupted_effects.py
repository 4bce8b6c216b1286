"""Helpers for runs that are stopped in the middle of an effect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import effects_app
import pytest

from ramify import Runtime
from ramify.runtime.errors import EffectInDoubt, RunFailed
from ramify.runtime.records import EffectStatus


async def stop_in(runtime: Runtime, workflow: Any, place: str, workspace: Path, text: str = "hi") -> str:
    """Start the workflow, cancel it while its effect hangs at that place, and return the run's id."""
    effects_app.STOP[:] = [place]
    await cancelled_where_it_hangs(asyncio.create_task(runtime.run(workflow, text, workspace=workspace)))
    return str(runtime.last_run_id)


async def cancelled_where_it_hangs(task: asyncio.Task[Any]) -> None:
    while "hangs" not in effects_app.STOP:
        await asyncio.sleep(0.01)
        assert not task.done(), task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    effects_app.STOP.clear()


def texts() -> list[str]:
    return [text for _, text in effects_app.sent()]


async def statuses(runtime: Runtime) -> list[EffectStatus]:
    return [effect.status for effect in await runtime.effects()]


async def doubt_of(runtime: Runtime, run: str) -> EffectInDoubt:
    with pytest.raises(RunFailed) as caught:
        await runtime.resume(run)
    cause = caught.value.__cause__
    assert isinstance(cause, EffectInDoubt)
    return cause
