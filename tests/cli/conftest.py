"""A home with one run in it, for the commands that only read."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import story as told
from story import STARTED, Story

from ramify import paths
from ramify.cli.main import run_command_line
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.records import RunStatus, RunUpdate
from ramify.runtime.store import RunStore


@pytest.fixture
def story() -> Story:
    return told.story()


@dataclass(frozen=True)
class Home:
    """A home in which the story's run took place, between two real snapshots."""

    path: Path
    base: Path  # the workspace as it was
    final: Path  # the same as the run left it
    story: Story


@pytest.fixture
def more_files() -> dict[str, str]:
    """Texts of files that the story's run left besides its own."""
    return {}


@pytest.fixture
def home(tmp_path: Path, story: Story, more_files: dict[str, str]) -> Home:
    base, final = tmp_path / "base", tmp_path / "final"
    for folder in (base, final):
        (folder / "lib").mkdir(parents=True)
        (folder / "same.txt").write_text("same\n")
    (base / "gone.txt").write_text("gone\n")
    (base / "lib" / "gcd.py").write_text("def gcd(a, b):\n    return a\n")
    (final / "lib" / "gcd.py").write_text("def gcd(a, b):\n    return gcd(b, a % b) if b else a\n")
    (final / os.fsdecode(b"caf\xe9.txt")).write_text("latin\n")
    for name, text in more_files.items():
        (final / name).write_text(text)
    where = tmp_path / "home"
    snapshots = SnapshotStore(paths.snapshots(where))
    ids = {name: snapshots.import_tree(folder).snapshot.id for name, folder in (("base", base), ("final", final))}
    first = replace(story.checkpoints[0], snapshot_id=ids["base"])
    rest = [replace(one, snapshot_id=ids["final"]) for one in story.checkpoints[1:]]
    recorded = replace(story, run=replace(story.run, base_snapshot=ids["base"]), checkpoints=[first, *rest])
    asyncio.run(_record(where, recorded))
    return Home(where, base, final, recorded)


async def _record(home: Path, story: Story) -> None:
    async with RunStore(paths.database(home), clock=lambda: STARTED + 30) as store:
        await store.create_run(story.run)
        await store.commit(story.run.id, ops=story.ops, llm=story.llm, checkpoints=story.checkpoints)


@dataclass(frozen=True)
class Said:
    """What a command line did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def ramify(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Said]:
    """Runs a command line in this process, on the home that `home` made."""

    def run(*arguments: object) -> Said:
        capfd.readouterr()
        status = run_command_line(["--home", str(tmp_path / "home"), *map(str, arguments)])
        said = capfd.readouterr()
        return Said(status, said.out, said.err)

    return run


@pytest.fixture
def no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own home, where weights are looked for too, is an empty one."""
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "usual"))


@pytest.fixture
def set_status(home: Home) -> Callable[[RunStatus], None]:
    """Changes what the story's row says of its end."""

    async def change(status: RunStatus) -> None:
        async with RunStore(paths.database(home.path), clock=lambda: STARTED + 30) as store:
            await store.commit(home.story.run.id, update=RunUpdate(status=RunStatus.RUNNING))
            await store.commit(home.story.run.id, update=RunUpdate(status=status))

    return lambda status: asyncio.run(change(status))


@pytest.fixture
def add_run(home: Home) -> Callable[..., None]:
    """One more run, like the story's but for what is given."""

    async def add(fields: dict[str, Any]) -> None:
        async with RunStore(paths.database(home.path), clock=lambda: STARTED + 30) as store:
            await store.create_run(replace(home.story.run, **fields))

    return lambda **fields: asyncio.run(add(fields))
