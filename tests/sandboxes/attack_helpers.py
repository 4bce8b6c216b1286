"""Helpers for attack tests: find a world's processes, and check that it still works."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

from ramify.sandboxes.contract import World

PATIENCE = 30.0


async def family(world: World) -> list[int]:
    """The host's pids of the world's processes, its agent first."""
    namespace = (await world.run("readlink /proc/self/ns/pid")).stdout.strip()
    inside: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # ended, or another user's
            if str((status.parent / "ns" / "pid").readlink()) == namespace:
                inside[int(re.findall(r"NSpid:.*\t(\d+)", status.read_text())[0])] = int(status.parent.name)
    assert 1 in inside
    return [pid for _, pid in sorted(inside.items())]


async def peak_kb(world: World) -> int:
    """The agent's peak memory, in kB."""
    status = Path(f"/proc/{(await family(world))[0]}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def python(text: str) -> list[str]:
    """A command for any isolated world: this Python by its own path, which a container does not have, or python3."""
    return [
        "bash",
        "-c",
        f'exec "$([ -x {sys.executable} ] && echo {sys.executable} || echo python3)" "$@"',
        "python",
        "-c",
        text,
    ]


async def well(world: World) -> bool:
    return (await world.run("echo well", timeout=PATIENCE)).stdout == "well\n"
