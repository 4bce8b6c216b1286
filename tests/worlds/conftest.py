"""Worlds on every backend that this machine has, in a home of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramify.worlds.home import WorldHome
from tests.machine import why_no_namespaces


@pytest.fixture(params=["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)])
def sandbox(request: pytest.FixtureRequest) -> str:
    if request.param == "namespaces" and (why := why_no_namespaces()):
        pytest.skip(why)
    return str(request.param)


@pytest.fixture
async def home(tmp_path: Path, sandbox: str) -> AsyncIterator[WorldHome]:
    async with WorldHome(tmp_path / "home", sandbox) as opened:
        yield opened


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print('hello')\n")
    (folder / "README").write_text("one\ntwo\nthree\n")
    return folder
