"""Where Ramify keeps what it keeps: one folder, the home."""

from __future__ import annotations

import os
from pathlib import Path


def home(explicit: Path | None = None) -> Path:
    """`explicit`, else $RAMIFY_HOME, else $XDG_DATA_HOME/ramify, else ~/.local/share/ramify."""
    if explicit is not None:
        return explicit.expanduser().absolute()
    if named := os.environ.get("RAMIFY_HOME"):
        return Path(named).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(data) / "ramify"


def database(home: Path) -> Path:
    return home / "ramify.db"


def snapshots(home: Path) -> Path:
    return home / "store"


def worlds(home: Path) -> Path:
    return home / "worlds"


def locks(home: Path) -> Path:
    return home / "locks"
