"""`ramify push`, `ramify pull`, `ramify gc --remote` and `ramify fsck --remote`: a home and its bucket."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from ramify import paths
from ramify.cli.completion import run_names
from ramify.cli.console import pass_home, run_async, say, say_json
from ramify.inspect.home import Home, find_run, find_state
from ramify.inspect.text import byte_count, count

if TYPE_CHECKING:
    from ramify.fork_engine.remote.remote_store import RemoteStore
    from ramify.fork_engine.types import SnapshotId
    from ramify.runtime.records import RunId
    from ramify.runtime.store import RunStore
    from ramify.worlds.references import References

_URL = click.option(
    "--remote",
    "url",
    metavar="URL",
    help="s3://BUCKET/PREFIX, gs://…, az://ACCOUNT/CONTAINER, or a folder. The home remembers it.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_SHORTEST = 4


@dataclass(slots=True)
class _Pushed:
    runs: list[str] = field(default_factory=list)
    snapshots: int = 0
    known: int = 0
    objects: int = 0
    bytes: int = 0


@click.command("push")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=run_names)
@_URL
@_JSON
@pass_home
def push_command(home: Home, names: tuple[str, ...], url: str | None, as_json: bool) -> None:
    """Upload runs and states to a bucket, from which other machines fetch them by their ids.

    NAME is a run, a state (RUN:BRANCH, RUN~2), a named world, a tag, or a snapshot. Files that the bucket has are not
    uploaded again.

    A run leaves this machine: it goes on where `ramify pull` fetches it, and only there. If the database is on a
    server, it stays, and any machine of the database can fetch its files.

    \b
    Example: ramify push 3f2a --remote s3://team/ramify
    """
    done = run_async(_push(home, names, url))
    if as_json:
        keys = ("runs", "snapshots", "known", "objects", "bytes")
        say_json({key: getattr(done, key) for key in keys})
        return
    for run in done.runs:
        say(f"run {run}: pushed")
    uploaded = f"{count(done.snapshots, 'snapshot')} uploaded, {done.known} known"
    say(f"{uploaded}; {count(done.objects, 'object')}, {byte_count(done.bytes)}")


async def _push(home: Home, names: Sequence[str], url: str | None) -> _Pushed:
    from ramify.fork_engine.gc_pins import Pins
    from ramify.fork_engine.remote.push import push
    from ramify.runtime.journal.run_transfer import push_run

    done, pins = _Pushed(), Pins(paths.locks(home.folder))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(home.store()) if home.has_runs else None
        wanted = [await _named(home, store, name) for name in names]  # all of them, before anything is uploaded
        remote = stack.enter_context(_opened(home, url, create=True))
        for run, snapshot in wanted:
            if run is not None and store is not None:
                pushed = await push_run(store, remote, pins, paths.locks(home.folder), run)
                done.runs.append(run)
            else:
                assert snapshot is not None
                pushed = push(remote, [snapshot], pins)
            done.snapshots += len(pushed.snapshots)
            done.known += len(pushed.known)
            done.objects += pushed.objects
            done.bytes += pushed.bytes
    return done


async def _named(home: Home, store: RunStore | None, name: str) -> tuple[RunId | None, SnapshotId | None]:
    """The run or the snapshot that a name stands for. Raises `RunNotFound`, `AmbiguousRef`."""
    from ramify.runtime.errors import RunNotFound
    from ramify.worlds.errors import WorldError
    from ramify.worlds.references import Kind

    references = _references(home)
    for kind in (Kind.TAG, Kind.WORLD):
        with suppress(WorldError):
            return None, references.get(kind, name).snapshot
    if store is not None:
        with suppress(RunNotFound):
            run = await find_run(store, name)
            return (run.id, None) if run is not None else (None, (await find_state(store, name)).snapshot)
    found = [id for id in home.snapshots().present() if len(name) >= _SHORTEST and id.startswith(name)]
    if len(found) != 1:
        raise RunNotFound(
            f"{name!r} names no run, state, world, tag or snapshot of {home.folder}: "
            "`ramify ls` and `ramify world ls` list them"
        )
    return None, found[0]


@click.command("pull")
@click.argument("name", metavar="ID")
@_URL
@click.option("--tag", metavar="NAME", help="The tag that a state gets here.  [default: the beginning of its id]")
@_JSON
@pass_home
def pull_command(home: Home, name: str, url: str | None, tag: str | None, as_json: bool) -> None:
    """Fetch a run or a snapshot from a bucket.

    ID is its id, or the beginning of it. Files that are here are not fetched.

    A run can then be resumed here, and on no other machine. A snapshot gets a tag, so that `ramify gc` keeps it:
    `ramify world new --from TAG` starts a world from it.

    \b
    Example: ramify pull 3f2a9c01 --remote s3://team/ramify
    """
    done = run_async(_pull(home, name, url, tag))
    if as_json:
        say_json(asdict(done))
    elif done.run:
        say(f"run {done.run} is here, with {_members(done.members)}: `ramify resume {done.run}` continues it")
    else:
        say(f"{done.snapshot}: fetched {_members(done.members)}, {byte_count(done.bytes)}; tag {done.tag}")


@dataclass(frozen=True, slots=True)
class _Pulled:
    """A run, or a snapshot and its tag; the other is empty."""

    run: str
    snapshot: str
    tag: str
    members: int
    bytes: int


async def _pull(home: Home, name: str, url: str | None, tag: str | None) -> _Pulled:
    from ramify.fork_engine.errors import RemoteObjectMissing
    from ramify.runtime.journal.run_transfer import pull_run
    from ramify.runtime.records import RunId
    from ramify.runtime.store import RunStore

    async with AsyncExitStack() as stack:
        remote = stack.enter_context(_opened(home, url))
        home.require_usable()
        runs = remote.runs_beginning(name) if len(name) >= _SHORTEST else []
        if len(runs) == 1 or home.has_runs:
            store = await stack.enter_async_context(RunStore(home.database, clock=home.clock))
            here = await find_run(store, name) if not runs else None
            if here is not None or len(runs) == 1:
                run = RunId(runs[0]) if here is None else here.id
                done = await pull_run(store, remote, paths.locks(home.folder), run)
                fetched = done.fetched
                return _Pulled(run, "", "", fetched.members, fetched.bytes)
        found = remote.snapshots_beginning(name) if len(name) >= _SHORTEST else []
        if len(found) + len(runs) != 1:
            raise RemoteObjectMissing(
                f"{len(found) + len(runs)} runs and snapshots of {remote.bucket.url} begin with {name!r}: write "
                "an id of at least 4 characters, or push it from the machine that has it"
            )
        return await _pull_snapshot(home, remote, found[0], tag or found[0][:12])


async def _pull_snapshot(home: Home, remote: RemoteStore, id: SnapshotId, tag: str) -> _Pulled:
    from ramify.fork_engine.gc_pins import Pins
    from ramify.fork_engine.remote.pull import pull
    from ramify.worlds.errors import NameTaken, WorldNotFound
    from ramify.worlds.references import Kind, Reference

    references, now = _references(home), home.clock()
    try:
        if references.get(Kind.TAG, tag).snapshot != id:
            raise NameTaken(f"the tag {tag!r} stands for another snapshot: choose another name with --tag")
        new = False
    except WorldNotFound:
        new = True
    async with Pins(paths.locks(home.folder)).held():
        done = pull(remote, [id])
        if new:
            references.put(Kind.TAG, Reference(tag, id, now, now, source=remote.bucket.url), new=True)
    return _Pulled("", id, tag, done.members, done.bytes)


def _opened(home: Home, url: str | None = None, *, create: bool = False) -> RemoteStore:
    from ramify.fork_engine.remote.remote_store import RemoteStore

    return RemoteStore(home.snapshots(), paths.remote(home.folder), url, create=create)


def _references(home: Home) -> References:
    from ramify.worlds.references import References

    return References(paths.references(home.folder))


def _members(number: int) -> str:
    return "1 layer or blob" if number == 1 else f"{number} layers and blobs"


def collect_remote(home: Home, dry_run: bool, as_json: bool) -> None:
    """Print what a collection of the home's bucket did, or would do."""
    from ramify.fork_engine.remote.collection import collect

    with _opened(home) as remote:
        done = collect(remote, _kept(home), dry_run=dry_run)
    if as_json:
        keys = ("unnamed", "condemned", "deleted", "bytes", "waiting")
        say_json({key: getattr(done, key) for key in keys})
        return
    would = "would delete" if dry_run else "deleted"
    say(f"{would} {count(done.deleted, 'object')}, {byte_count(done.bytes)}")
    if done.waiting:
        say(f"{count(done.waiting, 'object')} that no home names: a call in a day deletes what is still unnamed")


def _kept(home: Home) -> set[SnapshotId]:
    """Every snapshot that this home's runs, worlds, tags and images name."""
    from ramify.images.catalogue import Catalogue
    from ramify.runtime.worlds.garbage_collection import histories, living

    kept = _references(home).snapshots() | Catalogue(paths.images(home.folder)).snapshots()
    if home.has_runs:
        kept |= living(home.read(histories)).all
    return kept


def check_remote(home: Home, repair: bool, as_json: bool) -> int:
    """Print what is wrong in the home's bucket, and return the exit status."""
    from ramify.fork_engine.remote.check import check

    with _opened(home) as remote:
        report = check(remote, repair=repair)
    if as_json:
        problems = [{"name": one.name, "damage": one.damage.value, "detail": one.detail} for one in report.problems]
        say_json({"ok": report.status == 0, "problems": problems, "lost": list(report.lost)})
        return report.status
    for problem in report.problems:
        say(str(problem))
    for id in report.lost:
        say(f"snapshot {id}: cannot be fetched; push it again from a machine that has it", style="red")
    found = count(len(report.problems), "problem") if report.problems else "no problems"
    say(f"checked {count(report.records, 'record')}, {_members(report.members)}: {found}")
    return report.status
