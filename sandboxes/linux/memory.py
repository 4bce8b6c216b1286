"""How much memory this process can still get. Stdlib only."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""The limit of a control group, what it uses, and which part of that are cached files that the kernel would drop (in
memory.stat), by version 2 and by version 1."""


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The least that the machine and the control groups of this process have left."""
    lines = (proc / "meminfo").read_text().splitlines()
    left = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    memberships: list[str] = []
    with suppress(OSError):  # a kernel without control groups
        memberships = (proc / "self/cgroup").read_text().splitlines()
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = groups / "memory" if controllers else groups
        place = root / path.lstrip("/")
        for folder in (place, *place.parents):
            left += _left_in(folder)
            if folder == root:
                break
    return max(0, min(left, default=0))


def _left_in(folder: Path) -> list[int]:
    for limit, used, cached in GROUP_FILES:
        with suppress(OSError, ValueError):  # no such group, or "max"
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            return [left + _stated(folder / "memory.stat", cached)]
    return []


def _stated(stat: Path, name: str) -> int:
    with suppress(OSError):
        for line in stat.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
