"""A scripted model behind a port, for pages whose code asks one."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify.serving.testing import ScriptedModel, ScriptedServer
from ramify.serving.types import ChatRequest
from tests.warm_process import WarmInterpreter


def answer(request: ChatRequest) -> str:
    """The first option, as SmolLM2 likes it; else a word."""
    return "A" if request.max_tokens == 1 else "yes"


@pytest.fixture(scope="session")
def model_url() -> Iterator[str]:
    """Serves from a thread of its own, since pages block this one."""
    began, ended = threading.Event(), threading.Event()
    where: list[str] = []

    async def serve() -> None:
        async with ScriptedServer(ScriptedModel(answer)) as server:
            where.append(server.base_url)
            began.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert began.wait(30)
    yield where[0]
    ended.set()
    thread.join()


@pytest.fixture(scope="session")
def warm_programs(warm_langgraph: WarmInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `ramify` and `python`, whose interpreter has its modules loaded."""
    folder = tmp_path_factory.mktemp("bin")
    warm_langgraph.install(folder)
    return folder


@pytest.fixture
def own_modules(tmp_path: Path) -> Iterator[None]:
    """What a page's programs import is forgotten with it: two pages may both have an app.py."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
