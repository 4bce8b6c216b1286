"""The browser on real runs: while one goes on, at a fork of one, through a resume and an answer."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from ramify import Runtime
from ramify.inspect.home import Home
from ramify.runtime.user_code.workflow_loader import load_target

FLOW = """
import asyncio, pathlib
from ramify import Sandbox, fork, interrupt, step, workflow

GATE = pathlib.Path(__file__).parent / "gate"

@step
async def write(sandbox: Sandbox, name: str) -> str:
    return await sandbox.run(f"echo {name} > {name}; echo wrote {name}; echo careful >&2; exit 3")

@step
async def gated(sandbox: Sandbox) -> None:
    while not GATE.exists():
        await asyncio.sleep(0.01)
    (sandbox.path / "through").write_text("yes")

@workflow
async def live() -> int:
    await write("first")
    await gated()
    await write("last")
    return 7

@workflow
async def asking() -> str:
    await write("first")
    answer = await interrupt("which colour?\\nof all that there are")
    print("painting it", answer)
    return answer
"""


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(FLOW)
    return tmp_path / "flow.py"


async def test_running_run_is_followed(flow: Path, tmp_path: Path, workspace: Path, browse: Any) -> None:
    begun = asyncio.Event()
    async with Runtime(home=tmp_path / "live", sandbox="copy", observer=lambda _: begun.set()) as runtime:
        running = asyncio.create_task(runtime.run(load_target(f"{flow}:live"), workspace=workspace))
        await begun.wait()
        async with browse(at=tmp_path / "live") as it:
            assert "running" in it.head
            assert "gated" not in "".join(it.tree)
            (tmp_path / "gate").touch()
            assert await running == 7
            await it.until(lambda: "done" in it.head)
            await it.settled()
            assert "write" in it.here  # it followed what is new
            await it.press("5", "a")
            assert "$ echo last > last; echo wrote last" in it.text
            assert "wrote last\ncareful\nexit 3" in it.text
            await it.press("G")
            await it.press("2")
            assert "The original workspace" in it.text


async def test_a_node_is_forked_and_the_fork_resumed_and_answered(
    flow: Path, tmp_path: Path, workspace: Path, browse: Any
) -> None:
    home = tmp_path / "asks"
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(Exception, match="which colour"):
            await runtime.run(load_target(f"{flow}:asking"), workspace=workspace)
    async with browse(at=home) as it:
        await it.press("f")
        assert "Fork run" in it.screen
        await it.press("escape")
        assert len(await _statuses(home)) == 1
        await it.press("f", "y")
        await it.until(lambda: "forked" in it.head)
        await it.press("r", "y")
        await it.until(lambda: "which colour?" in it.screen and "exit 3" in it.screen)  # it waits: status 3
        await it.press("escape")
        await it.until(lambda: "waiting" in it.head)
        await it.press("r")
        await it.until(lambda: "of all that there are" in it.screen and "JSON or text" in it.screen)
        assert re.search(r"waits for the answer to question [0-9a-f]{8}", it.screen)
        assert "\N{REPLACEMENT CHARACTER}" not in it.screen  # the question has two lines, and is told in two
        await it.press(*"blue", "enter")
        await it.until(lambda: "painting it blue" in it.screen and "exit 0" in it.screen)
        await it.press("escape")
        await it.until(lambda: "done" in it.head)
        await it.press("R")
        await it.until(lambda: "waiting" in it.screen)  # the run that was forked stands as it stood
        await it.press("j", "enter")
        await it.until(lambda: "waiting" in it.head)
        await it.press("R")
        await it.until(lambda: "MODEL CALLS" in it.screen)  # the list asks the database first
        await it.press("k", "enter")
        await it.until(lambda: "done" in it.head)
        await it.press("r")
        assert "f forks it" in it.said
    assert await _statuses(home) == ["done", "waiting"]


async def _statuses(home: Path) -> list[str]:
    async with Home(home).store() as store:
        return [run.status.value for run in await store.runs()]
