"""Where Ramify keeps its files: one folder, called the home."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qs, unquote


def home(explicit: str | Path | None = None) -> Path:
    """`explicit`; otherwise $RAMIFY_HOME, $XDG_DATA_HOME/ramify, or ~/.local/share/ramify."""
    if explicit is not None:
        return Path(explicit).expanduser().absolute()
    if named := os.environ.get("RAMIFY_HOME"):
        return Path(named).expanduser().absolute()
    if data := os.environ.get("XDG_DATA_HOME"):
        return Path(data) / "ramify"
    return usual(Path("~").expanduser())


def usual(user: Path) -> Path:
    """The default home below a user's home folder."""
    return user / ".local" / "share" / "ramify"


KEPT = (
    *("store", "worlds", "locks", "references", "images", "evicted", "remote", "models", "analyzer", "criu"),
    *("ramify.db", "ramify.db-wal", "ramify.db-shm", "ramify.db-journal"),
)
"""The files and folders that Ramify creates in a home."""

_BESIDE_SQLITE = ("", "-wal", "-shm", "-journal")
_POSTGRES_FILES = ("PGPASSFILE", "PGSERVICEFILE", "PGSSLKEY", "PGSSLCERT")


def private(home: Path, database: str | Path) -> tuple[Path, ...]:
    """The paths that no command in a sandbox may read: Ramify's home, the database files, and the files that hold the
    credentials of the database, also of the one that the environment names.
    """
    named = os.environ.get("RAMIFY_DATABASE")
    return (home, *_database_files(database), *(_database_files(named) if named else ()))


def _database_files(database: str | Path) -> tuple[Path, ...]:
    """SQLite keeps its journal files beside the database itself, not beside a symbolic link to it."""
    address = str(database)
    scheme, apart, rest = address.partition("://")
    if isinstance(database, Path) or not apart or scheme.startswith("sqlite"):
        file = Path(unquote(rest.partition("?")[0]).removeprefix("/") if apart else address).expanduser().absolute()
        files = {file, file.resolve()} if file.name else set()
        return tuple(one.with_name(one.name + end) for one in files for end in _BESIDE_SQLITE)
    asked = parse_qs(rest.partition("?")[2])
    named = {name: asked.get(name, [""])[0] for name in ("host", "passfile", "sslkey", "sslcert")}
    keys = [*(os.environ.get(name, "") for name in _POSTGRES_FILES), *list(named.values())[1:]]
    folders = [*(named["host"] or os.environ.get("PGHOST", "")).split(",")]
    sockets = [f"{folder}/.s.PGSQL.{port}" for folder in folders for port in _ports(asked) if folder.startswith("/")]
    if folder := os.environ.get("PGSYSCONFDIR"):
        keys.append(f"{folder}/pg_service.conf")
    return tuple(Path(name).expanduser().absolute() for name in (*keys, *sockets) if name)


def _ports(asked: dict[str, list[str]]) -> set[str]:
    named = [os.environ.get("PGPORT", ""), *asked.get("port", ())]
    return {"5432", *(port for one in named for port in one.split(",") if port)}


def database(home: Path, explicit: str | Path | None = None) -> str | Path:
    """`explicit`, otherwise $RAMIFY_DATABASE: a path, sqlite:///FILE or postgresql://…; else a file in the home."""
    return explicit or os.environ.get("RAMIFY_DATABASE") or home / "ramify.db"


def snapshots(home: Path) -> Path:
    return home / "store"


def evicted(home: Path) -> Path:
    """Marks of snapshots that garbage collection deleted although runs name them."""
    return home / "evicted"


def remote(home: Path) -> Path:
    """What the home knows of the bucket that is its remote store."""
    return home / "remote"


def worlds(home: Path) -> Path:
    return home / "worlds"


def references(home: Path) -> Path:
    """The names of worlds and the tags of snapshots."""
    return home / "references"


def images(home: Path) -> Path:
    """The catalogue of images; their layers are in the store."""
    return home / "images"


def locks(home: Path) -> Path:
    return home / "locks"
