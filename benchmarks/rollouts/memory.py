"""The row of memory: idle worlds over one image, each of which has run a command."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.rollouts.backends import Docker
from benchmarks.rollouts.bed import Bed
from benchmarks.rows import Row, row
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.blocking_home import SyncWorldHome


def rows(bed: Bed) -> list[Row]:
    image = bed.images[0]
    count, containers = bed.rounds(200, 20), bed.rounds(20, 4)
    with SyncWorldHome(bed.home) as home, ExitStack() as worlds:
        worlds.enter_context(_idle(home, bed.ids[image.name]))  # what the first one loads is not the others'
        before = _bytes(process_tree(os.getpid()), "smaps_rollup", "Pss")
        for _ in range(count):
            worlds.enter_context(_idle(home, bed.ids[image.name]))
        processes = process_tree(os.getpid())
        mine = (_bytes(processes, "smaps_rollup", "Pss") - before) / count / 1e6
    peer = None if bed.missing["Docker"] else _docker_bytes(image.name, containers) / 1e6
    return [
        row(f"memory of an idle world over one image, {count} at once", round(mine, 2), "MB", target=2,
            peer=bed.peer_or_reason("Docker", f"an idle container, its shim and `sleep`, {containers} at once"),
            peer_value=None if peer is None else round(peer, 2),
            note="proportional set size of all processes, this one included; of root's processes, anonymous memory")
    ]  # fmt: skip


def _idle(home: SyncWorldHome, image: str) -> SyncWorld:
    world = SyncWorld.create(image=image, home=home)
    world.exec("true", check=True)
    return world


def _bytes(processes: Iterable[int], file: str, field: str) -> int:
    total = 0
    for pid in processes:
        with suppress(OSError):  # it ended
            said = Path(f"/proc/{pid}/{file}").read_text()
            total += sum(int(value) for value in re.findall(rf"^{field}:\s+(\d+) kB", said, re.MULTILINE)) * 1024
    return total


def _docker_bytes(image: str, count: int) -> float:
    """The anonymous memory that containers add to all processes of the engine: its shims are no children of it."""

    def shims() -> int:
        names = {"containerd-shim", "dockerd", "containerd", "sleep", "runc"}
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "comm").read_text().strip() in names:
                    found.append(int(entry.name))
        return _bytes(found, "status", "RssAnon")

    before = shims()
    for _ in range(count):
        words = ["docker", "run", "-d", "--rm", "--network", "none", "--label", Docker.label, image, "sleep", "600"]
        subprocess.run(words, check=True, capture_output=True)
    added = shims() - before
    Docker().settled()
    return added / count


def process_tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found
