"""A recorded run to look at, made once, and the page's application without a socket."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import browsed_app
import httpx
import pytest
from starlette.applications import Starlette

from ramify import Runtime, paths
from ramify.browse.web.app import create_app
from ramify.browse.web.run_cache import RunCache
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.store import RunStore
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel


async def make_run(home: Path) -> str:
    """A run of `browsed`; its id."""
    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(lambda request: "B")) as client,
        Runtime(home=home, sandbox="copy", llm=client) as runtime,
    ):
        await runtime.run(browsed_app.browsed)
        assert runtime.last_run_id is not None
        return runtime.last_run_id


@pytest.fixture(scope="session")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home, and the id of the run in it. Not to be written to."""
    home = tmp_path_factory.mktemp("browsed") / "home"
    return home, asyncio.run(make_run(home))


@pytest.fixture
async def reader(looked_at: tuple[Path, str]) -> AsyncIterator[RunCache]:
    home, _ = looked_at
    async with RunStore(paths.database(home), clock=time.time) as store:
        yield RunCache(store, SnapshotStore(paths.snapshots(home)), lambda run: run.status.value)


@pytest.fixture
async def client(reader: RunCache) -> AsyncIterator[httpx.AsyncClient]:
    app: Starlette = create_app(reader)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page") as opened:
        yield opened


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium is; skips without it, or without what drives it."""

    pytest.importorskip("playwright", reason="needs playwright: pip install 'ramify[web-test]'")
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium, or set CHROMIUM")
    return found
