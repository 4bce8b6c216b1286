"""The row of memory: idle worlds over one image, each of which has run a command.

What the machine has left says most: it counts processes that only root may look into, and what the kernel keeps for
namespaces, mounts and page tables. On a machine with other work it varies, so the note has the part that can be read.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

from benchmarks.rollouts.backends import Docker
from benchmarks.rollouts.bed import Bed
from benchmarks.rows import Row, row
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.blocking_home import SyncWorldHome

IDLE_S = 6.0
"""After the last command. A world keeps a process ready for the next one for 5 seconds."""


def rows(bed: Bed) -> list[Row]:
    image = bed.images[0]
    count, containers, rounds = bed.rounds(200, 20), bed.rounds(20, 4), bed.rounds(3, 1)
    readable: list[float] = []
    mine = [_worlds(bed, count, readable) for _ in range(rounds)]
    peers = [] if bed.missing["Docker"] else [_containers(image.name, containers) for _ in range(rounds)]
    note = f"{median(readable):.2f} MB of it is proportional set size of processes that the user may read"
    if peers:
        note += f"; Docker {min(peers):.1f} to {max(peers):.1f} MB"
    return [
        row(f"memory of an idle world over one image, {count} at once", round(median(mine), 2), "MB", target=2,
            spread=(round(min(mine), 2), round(max(mine), 2)), note=note,
            peer=bed.peer_or_reason("Docker", f"an idle container, {containers} at once"),
            peer_value=round(median(peers), 2) if peers else None)
    ]  # fmt: skip


def _worlds(bed: Bed, count: int, readable: list[float]) -> float:
    """Megabytes of memory that one more world takes."""
    image = bed.ids[bed.images[0].name]
    with SyncWorldHome(bed.home) as home, ExitStack() as worlds:
        worlds.enter_context(_idle(home, image))  # what the first one loads is not the others'

        def fill() -> None:
            before = _proportional_bytes(process_tree(os.getpid()))
            for _ in range(count):
                worlds.enter_context(_idle(home, image))
            time.sleep(IDLE_S)
            readable.append((_proportional_bytes(process_tree(os.getpid())) - before) / count / 1e6)

        return _taken(fill) / count / 1e6


def _containers(image: str, count: int) -> float:
    words = ["docker", "run", "-d", "--rm", "--network", "none", "--label", Docker.label, image, "sleep", "600"]

    def fill() -> None:
        for _ in range(count):
            subprocess.run(words, check=True, capture_output=True)
        time.sleep(IDLE_S)

    taken = _taken(fill) / count / 1e6
    Docker().settled()
    return taken


def _taken(fill: Callable[[], None]) -> int:
    """By how many bytes the machine's available memory shrinks."""
    before = _available_bytes()
    fill()
    return before - _available_bytes()


def _available_bytes() -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def _idle(home: SyncWorldHome, image: str) -> SyncWorld:
    world = SyncWorld.create(image=image, home=home)
    world.exec("true", check=True)
    return world


def _proportional_bytes(processes: Iterable[int]) -> int:
    total = 0
    for pid in processes:
        with suppress(OSError):  # it ended, or nobody may read it
            said = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += sum(int(value) for value in re.findall(r"^Pss:\s+(\d+) kB", said, re.MULTILINE)) * 1024
    return total


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
