"""The disk of a node as a bounded cache of the bucket.

A node keeps the states that its runs and worlds begin with, and those that they make. If these take more than the
node's $RAMIFY_DISK_BUDGET, or if its disk is nearly full, the node deletes states: first those that the bucket has
and only finished runs name, then those that are cheap to recompute. A run that needs a deleted state fetches it.

A collection blocks, so it has a process of its own: `python -m ramify.fleet.node_disk`, with the home and the
database in the environment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

from ramify import paths
from ramify.fork_engine.errors import RemoteError
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.types import SnapshotId
from ramify.home_collection import Space, automatic_policy, collect_home
from ramify.inspect.home import Home

EVERY_S = 300.0
"""Seconds between two collections. Younger snapshots are left alone anyway."""

_log = logging.getLogger(__name__)


class NodeDisk:
    """On one event loop."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._collecting: asyncio.Task[None] | None = None
        self._last: float | None = None

    async def ready(self) -> None:
        """Wait for a collection that is deciding or deleting, also one of another fleet in this home: it may not have
        seen a run that begins now, and delete what that begins with."""
        async with Pins(paths.locks(self._home)).held():
            return

    def look(self, database: str) -> None:
        """Begin a collection if it is due."""
        policy, now = automatic_policy(), time.monotonic()
        if policy is None or (self._collecting is not None and not self._collecting.done()):
            return
        if (self._last is None or now - self._last >= EVERY_S) and policy.is_due(Space.of(self._home), None, now):
            self._last = now
            self._collecting = asyncio.create_task(self._collect(database))

    async def close(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait({self._collecting})

    async def _collect(self, database: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "ramify.fleet.node_disk"),  # nothing from the current folder
            env={**os.environ, "RAMIFY_HOME": str(self._home), "RAMIFY_DATABASE": database},
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            process.kill()  # safe at any point: the next one goes on
            await process.wait()
            raise
        if process.returncode:
            _log.warning("the disk of this node was not cleaned up: %s", said.decode(errors="replace").strip())


async def collect_node(home: Home) -> None:
    """Delete snapshots until the home is within its budget."""
    policy = automatic_policy()
    if policy is None:
        return
    held = (await collect_home(home, None, True)).held
    most = policy.target(Space.of(home.folder), held)
    there = await asyncio.to_thread(_in_bucket, home) if held > most else set()
    await collect_home(home, most, False, in_bucket=there)


def _in_bucket(home: Home) -> set[SnapshotId]:
    """The snapshots of the home that its bucket has. It keeps them for a day at least, whoever collects there."""
    store = home.snapshots()
    try:
        with RemoteStore(store, paths.remote(home.folder)) as remote:
            here, condemned = list(store.present()), remote.condemned()
            names = remote.pool.map(remote.record_names, here)
            return {id for id, found in zip(here, names, strict=True) if set(found) - condemned.keys()}
    except RemoteError as error:
        _log.warning("only what can be recomputed is deleted: %s", error)
        return set()


if __name__ == "__main__":
    asyncio.run(collect_node(Home(paths.home(None), database_given=os.environ["RAMIFY_DATABASE"])))
