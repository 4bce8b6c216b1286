"""A Ray cluster of raylets on this machine, for benchmarks: two nodes with one CPU each, and a head that takes no
work. A killed raylet takes its processes with it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ramify import Runtime
from ramify.fleet.fleet import Fleet
from ramify.fleet.types import FleetEvent

ONE_NODE = "first"
"""A resource that one node has, so that work can ask for it."""

STORE_BYTES = 80 << 20
STARTS = 5


class RayletCluster:
    """Raylets on this machine, each with a home of its own. Ray sets handlers of signals: use the main thread."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._cluster, self._folder, self._started = Cluster(), folder, 0
        self._raylets: dict[str, Any] = {}
        self.add(num_cpus=0)
        self.address = str(self._cluster.address)

    def add(self, num_cpus: int = 1, resources: Mapping[str, float] | None = None) -> None:
        """Ray gives a node 30 seconds to start, which is not enough under much load: it is tried again."""
        for left in reversed(range(STARTS)):
            self._started += 1
            home = str(self._folder / f"home{self._started}")
            try:
                made = self._cluster.add_node(
                    num_cpus=num_cpus,
                    resources=dict(resources or {}),
                    object_store_memory=STORE_BYTES,
                    include_dashboard=False,
                    env_vars={"RAMIFY_HOME": home},
                )
            except Exception:  # Ray raises no other class
                if not left:
                    raise
                continue
            self._raylets[made.node_id[:8]] = made
            return

    def kill(self, node: str) -> None:
        """Kill the node of that name."""
        id = next(id for id in self._raylets if f"({id})" in node)
        self._cluster.remove_node(self._raylets.pop(id), allow_graceful=False)

    def kill_head(self) -> None:
        """Kill what the head is for the others: its GCS."""
        for process in self._cluster.head_node.all_processes["gcs_server"]:
            os.kill(process.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._cluster.shutdown()


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[float, FleetEvent]] = []  # with the time
        self._changed = asyncio.Event()

    def __call__(self, event: FleetEvent) -> None:
        self.events.append((time.time(), event))
        self._changed.set()

    async def next(self, kind: type[FleetEvent], after: int) -> tuple[float, Any]:
        """The first event of a kind from that position on."""
        while True:
            for at, event in self.events[after:]:
                if isinstance(event, kind):
                    return at, event
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 120)


@asynccontextmanager
async def open_cluster(folder: Path) -> AsyncIterator[RayletCluster]:
    """A cluster of two nodes."""
    cluster = RayletCluster(folder)
    try:
        cluster.add(resources={ONE_NODE: 1})
        cluster.add()
        yield cluster
    finally:
        await asyncio.to_thread(cluster.close)


@asynccontextmanager
async def open_fleet(
    folder: Path, database: str, bucket: str | Path, heard: Heard
) -> AsyncIterator[tuple[RayletCluster, Runtime, Fleet]]:
    """A cluster of two nodes, and a fleet on it."""
    async with (
        open_cluster(folder) as cluster,
        Runtime(home=folder / "home", database=database, remote=bucket, sandbox="copy") as runtime,
        Fleet(runtime, cluster.address, observer=heard) as fleet,
    ):
        yield cluster, runtime, fleet
