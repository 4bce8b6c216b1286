"""Collection of snapshots by itself, as `git gc --auto`: when the disk is nearly full, or above a budget.

It runs at the end of a command, in its process, and at most once in `every_s` seconds. It deletes what no row names
and, as far as space is missing, states that can be computed again, cheapest first. If another collection or a commit
is in the way, it does nothing: the next command comes soon.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ramify import paths
from ramify.runtime.worlds.garbage_collection import Collected

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
