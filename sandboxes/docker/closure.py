"""Which shared libraries programs need, as the dynamic loader finds them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ramify.sandboxes.errors import BackendUnavailable

LINE = re.compile(r"^\s+(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """By the name that they are loaded by (libz.so.1, not the file's own libz.so.1.2.13): where each lies.

    The loader itself is among them, by its whole path. Scripts and static programs need none.
    Raises `BackendUnavailable` where one is missing.
    """
    asked = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True)
    if "=> not found" in asked.stdout:
        missing = [line.strip() for line in asked.stdout.splitlines() if "not found" in line]
        raise BackendUnavailable(f"libraries are missing on this machine: {', '.join(missing)}")
    return {match["name"] or match["path"]: Path(match["path"]) for match in LINE.finditer(asked.stdout)}


def is_loader(name: str) -> bool:
    return Path(name).name.startswith(("ld-", "ld64.so", "ld.so"))
