"""Delete from a remote tier what no home names any more. `remote_store.py` says why that is safe beside other homes.

Each home names the snapshots that its runs, worlds, tags and images need, and only that home takes its names back. A
kill between any two steps leaves too much in the bucket, never too little.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import RemoteObjectAltered, RemoteObjectMissing, RemoteUnusable
from ramify.fork_engine.remote import formats
from ramify.fork_engine.remote.bucket import ObjectInfo
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.types import SnapshotId


@dataclass(frozen=True, slots=True)
class RemoteCollected:
    """What a collection did, or with `dry_run` would do. unnamed: names of this home that were taken back. condemned:
    objects and records marked now. deleted, bytes: objects and records deleted. waiting: marked ones that stay until
    their time is over."""

    unnamed: int
    condemned: int
    deleted: int
    bytes: int
    waiting: int


def collect(remote: RemoteStore, keep: Collection[SnapshotId], *, dry_run: bool = False) -> RemoteCollected:
    """Take back this home's names of snapshots that are not in `keep`, condemn what is unnamed, and delete what has
    been condemned for the bucket's grace and is still unnamed.

    Raises `RemoteError`; it can be repeated after any error or kill.
    """
    return _Collection(remote, dry_run).run(set(keep))


class _Collection:
    def __init__(self, remote: RemoteStore, dry_run: bool) -> None:
        self._remote, self._dry_run = remote, dry_run

    def run(self, keep: set[SnapshotId]) -> RemoteCollected:
        bucket, grace_s = self._remote.bucket, self._remote.marker.grace_s
        now = self._clock()
        gone = self._own_names_without(keep, now - grace_s)
        self._delete(gone, "unnamed")
        marks = self._remote.condemned()  # before what is listed next: see remote_store.py
        named = self._named(gone)
        listed = list(bucket.objects(formats.RECORDS))
        sound = {one.name.split("/")[1] for one in listed if one.name not in marks}
        needed = {one.name for one in listed if one.name.split("/")[1] in named} - {
            name for name in marks if name.startswith(f"{formats.RECORDS}/") and name.split("/")[1] in sound
        }
        idle = [one for one in listed if one.name not in needed]
        due = [one for one in idle if _is_due(one, marks, now, grace_s)]
        referenced = self._referenced({one.name for one in listed} - {one.name for one in due})
        free = [one for one in bucket.objects(formats.OBJECTS) if one.name not in referenced]
        due += [one for one in free if _is_due(one, marks, now, grace_s)]
        old_runs = self._superseded_runs(now - grace_s)
        new = [one for one in (*idle, *free) if one.name not in marks]
        if not self._dry_run:
            for one in new:
                self._remote.condemn(one.name)
            self._delete((one.name for one in (*due, *old_runs)), "swept")
            there = {one.name for one in (*listed, *free)} | referenced
            stale = (marks.keys() - there) | {one.name for one in due}
            self._delete((f"{formats.CONDEMNED}/{name}" for name in stale), "swept")
        waiting = len(new) + len([one for one in (*idle, *free) if one.name in marks]) - len(due)
        done = [*due, *old_runs]
        return RemoteCollected(len(gone), len(new), len(done), sum(one.size for one in done), waiting)

    def _clock(self) -> float:
        """Return the time by the bucket's own clock, in Unix seconds."""
        bucket, name = self._remote.bucket, f"{formats.CLOCK}/{secrets.token_hex(8)}"
        bucket.put(name, b"")
        info = bucket.info(name)
        bucket.delete(name)
        if info is None:
            raise RemoteUnusable(f"{bucket.url}: an object that was just written is not there")
        return info.modified

    def _own_names_without(self, keep: set[SnapshotId], before: float) -> list[str]:
        """Return the names of this home to take back. Young ones stay: a push or pull that runs now wrote them, and
        no row names its snapshots yet."""
        mine = self._remote.bucket.objects(f"{formats.NAMES}/{self._remote.owner}")
        return [one.name for one in mine if one.name.rpartition("/")[2] not in keep and one.modified < before]

    def _named(self, gone: Iterable[str]) -> set[str]:
        left = {one.name for one in self._remote.bucket.objects(formats.NAMES)} - set(gone)
        return {name.rpartition("/")[2] for name in left}

    def _referenced(self, names: Iterable[str]) -> set[str]:
        """Return the objects of these records. One that cannot be read needs nothing: no pull can use it."""

        def objects(name: str) -> set[str]:
            try:
                return self._remote.record(name).objects
            except (RemoteObjectMissing, RemoteObjectAltered):
                return set()

        return set().union(*self._remote.pool.map(objects, sorted(names)))

    def _superseded_runs(self, before: float) -> list[ObjectInfo]:
        """Return the objects of runs that a later push of the same run replaced."""
        newest: dict[str, int] = {}
        every: list[tuple[str, int, ObjectInfo]] = []
        for one in self._remote.bucket.objects(formats.RUNS):
            if (generation := formats.generation_of(one.name)) is not None:
                run = one.name.split("/")[1]
                newest[run] = max(newest.get(run, 0), generation)
                every.append((run, generation, one))
        return [one for run, generation, one in every if generation < newest[run] and one.modified < before]

    def _delete(self, names: Iterable[str], point: str) -> None:
        for name in () if self._dry_run else names:
            self._remote.bucket.delete(name)
            crash_points.point(point)


def _is_due(one: ObjectInfo, marks: dict[str, float], now: float, grace_s: float) -> bool:
    return one.name in marks and marks[one.name] + grace_s <= now
