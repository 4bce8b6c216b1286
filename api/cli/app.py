"""What every command starts from: the home, and the stores in it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ramify import paths
from ramify.runtime import refs
from ramify.runtime.errors import RunNotFound
from ramify.runtime.locks import is_held
from ramify.runtime.records import CheckpointRecord, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.fork_engine.store import SnapshotStore
    from ramify.runtime.store import RunStore

T = TypeVar("T")

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class App:
    home: Path
    clock: Callable[[], float] = time.time

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    @property
    def has_runs(self) -> bool:
        return paths.database(self.home).exists()

    @asynccontextmanager
    async def store(self) -> AsyncIterator[RunStore]:
        """The database. Raises `RunNotFound` where there is none yet: a command that reads makes nothing."""
        if not self.has_runs:
            raise RunNotFound(f"no runs yet in {self.home}: start one with `ramify run FILE.py:NAME`")
        from ramify.runtime.store import RunStore

        async with RunStore(paths.database(self.home), clock=self.clock) as store:
            yield store

    def snapshots(self) -> SnapshotStore:
        from ramify.fork_engine.store import SnapshotStore

        return SnapshotStore(paths.snapshots(self.home))

    async def find(self, text: str) -> refs.Place:
        """The state that `text` names."""
        async with self.store() as store:
            return await find(store, text)

    def status(self, run: RunRecord) -> str:
        """A run's status; "interrupted" where the row says running and no process works on it."""
        if run.status is RunStatus.RUNNING and not is_held(paths.locks(self.home), run.id):
            return INTERRUPTED
        return run.status.value


pass_app = click.make_pass_decorator(App)


async def find(store: RunStore, text: str) -> refs.Place:
    """The state that `text` names. Reads other runs' checkpoints only where no run fits."""
    runs = await store.runs()
    run = refs.find_run(refs.parse(text), runs)
    if run is not None:
        return refs.resolve(text, runs, await store.checkpoints(run.id))
    every: list[CheckpointRecord] = []
    for one in runs:
        every += await store.checkpoints(one.id)
    return refs.resolve(text, runs, every, await store.live_snapshots())


async def find_run(store: RunStore, text: str) -> RunRecord | None:
    """The run that `text` names as such, None where it names a state."""
    ref = refs.parse(text)
    return refs.find_run(ref, await store.runs()) if ref.is_whole_run else None


async def need_run(store: RunStore, text: str) -> RunRecord:
    run = await find_run(store, text)
    if run is None:
        raise RunNotFound(f"no run begins with {text!r}: `ramify ls` lists the runs")
    return run


def say(line: str = "", *, style: str = "", err: bool = False) -> None:
    """A line; the style is left out where the output is no terminal, or NO_COLOR is set."""
    looks: dict[str, Any] = {"dim": True} if style == "dim" else {"bold": True} if style == "bold" else {}
    if style and not looks:
        looks = {"fg": style}
    click.echo(click.style(line, **looks) if looks else line, err=err)


def say_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def say_all(lines: Sequence[str]) -> None:
    """A table: its header in bold."""
    for at, line in enumerate(lines):
        say(line, style="bold" if at == 0 else "")
