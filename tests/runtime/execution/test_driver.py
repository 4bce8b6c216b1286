from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ramify.runtime.errors import LeaseLost
from ramify.runtime.execution.driver import _unless_cancelled


async def test_a_run_that_is_lost_says_so_once(tmp_path: Path) -> None:
    """Its last commits fail for the same reason."""
    lost = LeaseLost("another process took it over", run_id="r", host="", pid=0)

    async def commits_when_it_is_cancelled() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise lost from None

    said = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: said.append(told))
    services: Any = SimpleNamespace(locks=tmp_path, store=SimpleNamespace(loss_of=lambda run: lost))
    with pytest.raises(LeaseLost) as raised:
        await _unless_cancelled(commits_when_it_is_cancelled(), services, SimpleNamespace(run_id="r"))  # type: ignore[arg-type]
    raised.value.__traceback__ = None
    del raised
    gc.collect()
    await asyncio.sleep(0)
    assert said == []
