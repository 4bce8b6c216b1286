"""Collection of the snapshots of a home: for `ramify gc`, for commands at their end, and for nodes of a fleet."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import AsyncExitStack

from ramify import paths
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import SnapshotId
from ramify.inspect.home import Home
from ramify.runtime.store.address import parse
from ramify.runtime.worlds.automatic_collection import DiskPolicy
from ramify.runtime.worlds.garbage_collection import Collected, EvictionMarks, collect, histories, living

BUDGET_VARIABLE = "RAMIFY_DISK_BUDGET"
OFF = "off"

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def byte_size(text: str) -> int:
    """Raises `ValueError`, which says how to write one."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: write 500M, 2G, or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].lower()])


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
