"""Which other Pythons this machine has. `python tests/pythons.py` prints them, one a line: version and path.

Looked for: `python3.N` on the path, and what pyenv and uv have installed. Of each minor version but this process's
own, from 3.11 on, the newest that starts.

RAMIFY_TEST_PYTHONS names interpreters that have Ramify and its dependencies, separated by colons: for the tests that
go from one Python to another (`.ci/run pythons` makes them).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST, NEWEST = 11, 30
_VERSION = "import sys; print('%d %d %d' % sys.version_info[:3])"
_EQUIPPED = "import ramify.session, aiosqlite, sqlalchemy, httpx; print('equipped')"


def others() -> dict[str, Path]:
    """By minor version, such as "3.12"."""
    found: dict[int, tuple[int, Path]] = {}
    for path in _candidates():
        version = _asked(path, _VERSION).split()
        if len(version) != 3:
            continue  # pyenv's shims of versions that are not chosen, and what is no Python
        major, minor, patch = map(int, version)
        if major == 3 and minor >= OLDEST and minor != sys.version_info.minor and found.get(minor, (-1,))[0] < patch:
            found[minor] = (patch, path)
    return {f"3.{minor}": path for minor, (_, path) in sorted(found.items())}


def equipped() -> list[Path]:
    """Of other versions, and able to run Ramify as this one does."""
    named = [Path(path) for path in os.environ.get("RAMIFY_TEST_PYTHONS", "").split(":") if path]
    return [path for path in named or others().values() if _asked(path, _EQUIPPED) == "equipped"]


def _candidates() -> Iterator[Path]:
    for minor in range(OLDEST, NEWEST):
        name = f"python3.{minor}"
        if (there := shutil.which(name)) is not None:
            yield Path(there)
        for folder in _folders():
            yield from sorted(folder.glob(f"*/bin/{name}"))


def _folders() -> Iterator[Path]:
    yield Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    data = Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share"))
    yield Path(os.environ.get("UV_PYTHON_INSTALL_DIR", data / "uv" / "python"))


def _asked(python: Path, program: str) -> str:
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=60, cwd="/", check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    for version, path in others().items():
        print(version, path)
