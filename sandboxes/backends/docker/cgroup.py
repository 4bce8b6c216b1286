"""Count the processes that the kernel killed for memory in a container, by its control group, version 1 or 2."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def out_of_memory(pid: int, root: Path = ROOT) -> int:
    """How many processes were killed for memory in the control group of `pid`; 0 if the kernel does not count."""
    own = Path(f"/proc/{pid}/cgroup")
    try:
        groups = dict(_groups(own.read_text()))
    except (FileNotFoundError, ProcessLookupError):
        return 0  # the container has ended
    if "memory" in groups:
        return _read(root / "memory" / groups["memory"].lstrip("/") / "memory.oom_control", "oom_kill")
    return _read(root / groups.get("", "/").lstrip("/") / "memory.events", "oom_kill")


def _groups(text: str) -> list[tuple[str, str]]:
    """(controller, group) for each line `4:memory:/docker/…`; the controller of version 2 is ""."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [(controller, group) for _, controllers, group in lines for controller in controllers.split(",")]


def _read(file: Path, name: str) -> int:
    if not file.exists():
        return 0
    pairs = (line.split() for line in file.read_text().splitlines())
    return next((int(pair[1]) for pair in pairs if pair[0] == name), 0)
