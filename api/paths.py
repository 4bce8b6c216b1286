"""Where Ramify keeps what it keeps: one folder, the home."""

from __future__ import annotations

import os
from pathlib import Path


def home(explicit: str | Path | None = None) -> Path:
    """`explicit`, else $RAMIFY_HOME, else $XDG_DATA_HOME/ramify, else ~/.local/share/ramify."""
    if explicit is not None:
        return Path(explicit).expanduser().absolute()
    if named := os.environ.get("RAMIFY_HOME"):
        return Path(named).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(data) / "ramify"


def database(home: Path, explicit: str | Path | None = None) -> str | Path:
    """`explicit`, else $RAMIFY_DATABASE: a path, sqlite:///FILE or postgresql://…; else a file in the home."""
    return explicit or os.environ.get("RAMIFY_DATABASE") or home / "ramify.db"


def snapshots(home: Path) -> Path:
    return home / "store"


def evicted(home: Path) -> Path:
    """The marks of snapshots that a collection let go of although runs name them."""
    return home / "evicted"


def worlds(home: Path) -> Path:
    return home / "worlds"


def locks(home: Path) -> Path:
    return home / "locks"
