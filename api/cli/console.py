"""What every command starts from: the home, and the stores in it."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ramify import paths
from ramify.runtime.errors import RunNotFound, StoreError
from ramify.runtime.journal import refs
from ramify.runtime.records import DOUBTFUL, CheckpointRecord, EffectStatus, RunRecord, RunStatus
from ramify.runtime.store.run_locks import is_held

if TYPE_CHECKING:
    from ramify.fork_engine.store import SnapshotStore
    from ramify.inspect.history import History
    from ramify.runtime.store import RunStore
    from ramify.runtime.store.reader import Reader

_COMMAND = re.compile(r"`ramify (?=[a-z])")


@dataclass(slots=True)
class Typed:
    """What a command line said of the place of its runs, none of which the next one knows by itself."""

    home: Path | None = None
    database: str | None = None

    def complete(self, text: str) -> str:
        """The text, each command in it with these options. Nobody who words a message has to know of them."""
        if "`ramify " not in text or (self.home is None and self.database is None):
            return text
        words = ["`ramify"]
        if self.home is not None:
            words += ["--home", shlex.quote(str(self.home))]
        if self.database is not None:
            words += ["--database", shlex.quote(_without_password(self.database))]
        return _COMMAND.sub(lambda _: f"{' '.join(words)} ", text)


def _without_password(address: str) -> str:
    from ramify.runtime.errors import StoreError
    from ramify.runtime.store.address import parse

    try:
        return str(parse(address)) if "://" in address and not address.startswith("sqlite") else address
    except StoreError:
        return "ADDRESS"


T = TypeVar("T")

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class App:
    home: Path
    clock: Callable[[], float] = time.time
    database_given: str | None = None
    typed: Typed = field(default_factory=Typed)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        import asyncio

        return asyncio.run(work)

    def look(self, work: Callable[[Reader], Coroutine[Any, Any, T]]) -> T:
        """What `work` finds in the database, for a command that only looks: without an event loop.

        Raises `RunNotFound` where there is no database yet: such a command makes nothing.
        """
        self._need_runs()
        from ramify.runtime.store.reader import at_once, reading

        gc.disable()  # what is read is kept: to look for garbage in it takes a quarter of the time
        try:
            with reading(self.database) as reader:
                return at_once(work(reader))
        finally:
            gc.freeze()
            gc.enable()

    @property
    def database(self) -> str | Path:
        return paths.database(self.home, self.database_given)

    @property
    def place(self) -> str | Path:
        """Where the runs are, for people."""
        return self.database_given or self.home

    @property
    def has_runs(self) -> bool:
        """False where the database is a file that is not there: a command that reads makes none."""
        from ramify.runtime.store.address import parse

        file = parse(self.database).file
        return file is None or os.path.exists(file)  # noqa: PTH110  # Path's own raises where it may not look

    def need_place(self) -> None:
        """Raises `StoreError` where no run can be kept, now or later: who looks is not told that none is yet."""
        from ramify.runtime.store.address import parse

        file = parse(self.database).file
        if file is None or (why := _unusable(file.absolute().parent)) is None:
            return
        if self.database_given is None and file.parent == self.home:
            raise StoreError(
                f"the home {self.home} cannot be used: {why}. Name another one: --home DIR or $RAMIFY_HOME"
            )
        raise StoreError(
            f"the database {file} cannot be used: {why}. Name another one: --database or $RAMIFY_DATABASE"
        )

    @asynccontextmanager
    async def store(self) -> AsyncIterator[RunStore]:
        """The database. Raises `RunNotFound` where there is none yet."""
        self._need_runs()
        from ramify.runtime.store import RunStore

        async with RunStore(self.database, clock=self.clock) as store:
            yield store

    @asynccontextmanager
    async def store_to_look(self) -> AsyncIterator[RunStore | Reader]:
        """As `store`, for who looks for long: also where nothing can be written."""
        from ramify.runtime.store.address import parse

        file = parse(self.database).file
        if file is None or os.access(file.parent, os.W_OK):
            async with self.store() as store:
                yield store
            return
        self._need_runs()
        from ramify.runtime.store.reader import reading

        with reading(self.database) as reader:
            yield reader

    def _need_runs(self) -> None:
        if not self.has_runs:
            self.need_place()
            raise RunNotFound(f"no runs yet in {self.place}: start one with `ramify run FILE.py:NAME`")

    def snapshots(self) -> SnapshotStore:
        from ramify.fork_engine.store import SnapshotStore

        return SnapshotStore(paths.snapshots(self.home))

    def find(self, text: str) -> refs.Place:
        """The state that `text` names."""
        return self.look(lambda store: find(store, text))

    def status(self, run: RunRecord) -> str:
        """A run's status; "interrupted" where the row says running and no process works on it, unless it is a
        thread's that has nothing left to run; "in doubt" where it ended with one that nobody has settled since."""
        if run.status is RunStatus.FAILED and (run.error or "").startswith(("EffectInDoubt: ", "ResultNotKept: ")):
            return EffectStatus.IN_DOUBT.value if self._has_doubts(run) else run.status.value
        if run.status is not RunStatus.RUNNING or is_held(paths.locks(self.home), run.id):
            return run.status.value
        if run.thread_id is not None:
            from ramify.runtime.langgraph.thread.stored_thread import has_ended

            if has_ended(self.database, run):
                return RunStatus.DONE.value
        return INTERRUPTED

    def _has_doubts(self, run: RunRecord) -> bool:
        from ramify.runtime.store.reader import at_once, reading

        with reading(self.database) as reader:
            return any(effect.status in DOUBTFUL or effect.lacks_result for effect in at_once(reader.effects(run.id)))


def _unusable(folder: Path) -> str | None:
    """Why nothing can be kept in a folder; None where it is there, or could be made. Nothing stays of the trial."""
    import tempfile  # not by the commands that find their home

    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    try:
        if there == folder:
            os.scandir(folder).close()
        else:  # root is let write anywhere, by its rights; /proc and a disk that only reads refuse all the same
            Path(tempfile.mkdtemp(prefix=".ramify-", dir=there)).rmdir()
    except OSError as error:
        return f"{there}: {error.strerror}"
    return None


pass_app = click.make_pass_decorator(App)


async def find(store: RunStore | Reader, text: str) -> refs.Place:
    """The state that `text` names. Reads other runs' checkpoints only where no run fits."""
    runs = await store.runs()
    run = refs.find_run(refs.parse(text), runs)
    if run is not None:
        return refs.resolve(text, runs, await store.checkpoints(run.id))
    every: list[CheckpointRecord] = []
    for one in runs:
        every += await store.checkpoints(one.id)
    return refs.resolve(text, runs, every, await store.live_snapshots())


async def find_state_with_history(
    store: RunStore | Reader, text: str, known: History | None = None
) -> tuple[refs.Place, History | None]:
    """The state that `text` names, and its run's history (`known`, where it is that run's); None for a snapshot of
    no run. Reads each row once."""
    from ramify.inspect.history import read

    async def history(run: RunRecord) -> History:
        return known if known is not None and known.run.id == run.id else await read(store, run.id)

    runs = await store.runs()
    run = refs.find_run(refs.parse(text), runs)
    if run is not None:
        mine = await history(run)
        return refs.resolve(text, runs, mine.checkpoints), mine
    place = await find(store, text)
    return place, None if place.run is None else await history(place.run)


async def find_run(store: RunStore | Reader, text: str) -> RunRecord | None:
    """The run that `text` names as such, None where it names a state."""
    ref = refs.parse(text)
    return refs.find_run(ref, await store.runs()) if ref.is_whole_run else None


async def need_run(store: RunStore | Reader, text: str) -> RunRecord:
    run = await find_run(store, text)
    if run is None:
        raise RunNotFound(f"no run begins with {text!r}: `ramify ls` lists the runs")
    return run


def say(line: str = "", *, style: str = "", err: bool = False) -> None:
    """A line of our own; the style is left out where the output is no terminal, or NO_COLOR is set."""
    context = click.get_current_context(silent=True)
    app = None if context is None else context.find_object(App)
    click.echo(styled(line if app is None else app.typed.complete(line), style), err=err)


def styled(text: str, style: str) -> str:
    """`style`: a colour, "dim", "bold" or "" for plain text."""
    if not style:
        return text
    return click.style(text, **({style: True} if style in ("dim", "bold") else {"fg": style}))


def say_json(value: object) -> None:
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except ValueError:  # a figure that JSON has no word for
        text = json.dumps(_finite(value), indent=2)
    click.echo(text)


def _finite(value: object) -> object:
    """What is no number, or infinite, as text: few readers of JSON take a bare NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(_finite(key)) if isinstance(key, float) else key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def say_all(lines: Sequence[str]) -> None:
    """A table: its header in bold."""
    for at, line in enumerate(lines):
        say(line, style="bold" if at == 0 else "")


def headed(lines: Iterable[str]) -> Iterator[str]:
    """A table, its header in bold."""
    for at, line in enumerate(lines):
        yield click.style(line, bold=True) if at == 0 else line


def say_pages(lines: Iterable[str]) -> None:
    """Lines that may be many: through the user's pager where the output is a terminal, as git does it. Colours are
    the output's business alone: neither the pager's name nor the input takes them away."""
    if not sys.stdout.isatty():
        for line in lines:
            click.echo(line)
        return
    os.environ.setdefault("LESS", "FRX")  # git's own: quit where all fits, keep colours, leave the screen as it is
    # between lines only: click ends what it pages with a newline of its own
    parted = (f"\n{line}" if at else line for at, line in enumerate(lines))
    click.echo_via_pager(parted, color=click.get_current_context().color is not False)
