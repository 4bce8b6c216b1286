"""How much memory this process can still get. Stdlib only."""

from __future__ import annotations

from pathlib import Path

GROUP_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""The limit of a control group and what it uses, by version 2 and by version 1."""


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The least that the machine and the control groups of this process have left."""
    lines = (proc / "meminfo").read_text().splitlines()
    left = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for line in (proc / "self/cgroup").read_text().splitlines():
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
    for limit, used in GROUP_FILES:
        try:
            return [int((folder / limit).read_text()) - int((folder / used).read_text())]
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return []
