"""Collection of the snapshots of a home: for `ramify gc`, for commands at their end, and for nodes of a fleet.

It is also done by itself, as `git gc --auto`: when the disk is nearly full, or above a budget. That runs at the end
of a command, in its process, and at most once in `every_s` seconds. It deletes what no row names and, as far as space
is missing, states that can be computed again, cheapest first. If another collection or a commit is in the way, it
does nothing: the next command comes soon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ramify import paths
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import SnapshotId
from ramify.inspect.home import Home
from ramify.runtime.durations import shown
from ramify.runtime.store.address import parse
from ramify.runtime.worlds.garbage_collection import Collected, EvictionMarks, collect, histories, living

_STAMP = "collected"  # its time of change is that of the last collection


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of a file system."""

    free: int
    total: int

    @classmethod
    def of(cls, folder: Path) -> Space:
        status = os.statvfs(folder)
        return cls(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


@dataclass(frozen=True, slots=True)
class DiskPolicy:
    """budget: bytes that the files of snapshots may take; None: only the disk counts. least_free, least_free_share:
    of the disk, the smaller of these bytes and this share stays free."""

    budget: int | None = None
    least_free: int = 10 << 30
    least_free_share: float = 0.1
    every_s: float = 3600.0

    def missing(self, space: Space) -> int:
        """Bytes to free on the disk."""
        return max(0, min(self.least_free, int(self.least_free_share * space.total)) - space.free)

    def is_due(self, space: Space, last: float | None, now: float) -> bool:
        """`last`: when it was collected last. Costs nothing: sizes are only measured by a collection."""
        if last is not None and 0 <= now - last < self.every_s:
            return False
        return self.budget is not None or self.missing(space) > 0

    def target(self, space: Space, held: int) -> int:
        """Bytes that snapshots which hold `held` may hold afterwards."""
        most = max(0, held - self.missing(space))
        return most if self.budget is None else min(most, self.budget)


async def collect_if_due(
    home: Path,
    policy: DiskPolicy,
    collect: Callable[[int | None, bool], Awaitable[Collected]],
    *,
    clock: Callable[[], float],
    space: Callable[[Path], Space] = Space.of,
) -> Collected | None:
    """Collect if the policy says so; None if it was not due, or if something is in the way.

    collect: `garbage_collection.collect` with (budget, dry_run), which raises `BlockingIOError` instead of waiting.
    """
    stamp, now = paths.locks(home) / _STAMP, clock()
    if not home.is_dir() or not policy.is_due(space(home), _time_of(stamp), now):
        return None
    try:
        held = (await collect(None, True)).held
        done = await collect(policy.target(space(home), held), False)
    except BlockingIOError:
        return None
    paths.make_private(stamp.parent)
    paths.make_private_file(stamp)
    os.utime(stamp, (now, now))
    return done


def _time_of(stamp: Path) -> float | None:
    try:
        return stamp.stat().st_mtime
    except FileNotFoundError:
        return None


BUDGET_VARIABLE = "RAMIFY_DISK_BUDGET"
OFF = "off"

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOST = 1 << 60
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def byte_size(text: str) -> int:
    """Raises `ValueError`, which says how to write one."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{shown(text)} is not a size: write 500M, 2G, or a number of bytes")
    size = float(found[1]) * _UNITS[found[2].lower()]
    if size >= _MOST:
        raise ValueError(f"{shown(text)} is too large a size: no file system holds as much")
    return int(size)


def automatic_policy() -> DiskPolicy | None:
    """What $RAMIFY_DISK_BUDGET says; None if it turns automatic collection off. Raises `ValueError`."""
    said = os.environ.get(BUDGET_VARIABLE, "")
    return None if said == OFF else DiskPolicy(budget=byte_size(said) if said else None)


async def collect_home(
    home: Home, budget: int | None, dry_run: bool, *, in_bucket: Collection[SnapshotId] = (), wait: bool = True
) -> Collected:
    """As `garbage_collection.collect`. Keeps what worlds, tags and images name, and all that runs in the home's own
    database name, if its runs of now are in another one."""
    from ramify.images.catalogue import Catalogue  # commands that only ask whether a collection is due need none
    from ramify.worlds.ancestry import Ancestry
    from ramify.worlds.references import References

    pins, marks = Pins(paths.locks(home.folder)), EvictionMarks(paths.evicted(home.folder))
    worlds, images = References(paths.references(home.folder)), Catalogue(paths.images(home.folder))
    snapshots = home.snapshots()

    def named() -> set[SnapshotId]:
        ancestry, states = Ancestry(snapshots, paths.references(home.folder)), worlds.snapshots()
        if (heads := states | pins.kept()) and not dry_run:  # worlds without a name merge too, while they live
            ancestry.remember(heads)
        return states | ancestry.merge_bases(states) | images.snapshots() | _of_own_database(home)

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(home.store()) if home.has_runs else None
        return await collect(
            store,
            snapshots,
            pins,
            marks,
            budget=budget,
            dry_run=dry_run,
            named=named,
            in_bucket=in_bucket,
            wait=wait,
        )


def _of_own_database(home: Home) -> set[SnapshotId]:
    """What runs in the home's own database name, if the home is used with another one: a node of a fleet may be the
    machine of somebody who also works without the fleet."""
    own, used = home.folder / "ramify.db", parse(home.database).file
    if not own.is_file() or (used is not None and used.absolute().resolve() == own.resolve()):
        return set()
    return living(Home(home.folder, database_given=str(own)).read(histories)).all
