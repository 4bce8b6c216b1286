"""Where Ramify keeps its files: one folder, called the home."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, unquote


def home(explicit: str | Path | None = None) -> Path:
    """`explicit`; otherwise $RAMIFY_HOME, $XDG_DATA_HOME/ramify, or ~/.local/share/ramify. Raises `FileNotFoundError`
    if none is set and the user has no home folder."""
    if explicit is not None:
        return expanded(explicit).absolute()
    if named := os.environ.get("RAMIFY_HOME"):
        return expanded(named).absolute()
    if data := os.environ.get("XDG_DATA_HOME"):
        return Path(data) / "ramify"
    user = of_user()
    if user is None:
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder: set $RAMIFY_HOME", "~")
    return usual(user)


def expanded(path: str | Path) -> Path:
    """The path with `~` and `~NAME` replaced, as a shell does it: a name that no user has stays as it is written.
    `Path.expanduser` raises a `RuntimeError` for such a name, which says nothing about the path."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def of_user() -> Path | None:
    """The user's home folder; None for a user without one."""
    home = expanded("~")
    return None if home == Path("~") else home


def make_private(folder: Path) -> None:
    """Create a folder, and those above it that are missing, with mode 0700 whatever the umask.

    One that exists keeps its mode; `ramify doctor` tells if others may read the home. Raises `OSError`.
    """
    missing = []
    for one in (folder, *folder.parents):
        if one.exists():
            break
        missing.append(one)
    if not missing and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    for one in reversed(missing):
        try:
            one.mkdir(mode=0o700)
        except FileExistsError:  # another process made it meanwhile
            if not one.is_dir():
                raise
        else:
            one.chmod(0o700)


def make_private_file(file: Path) -> None:
    """Create an empty file with mode 0600 whatever the umask, unless it exists. Raises `OSError`."""
    with suppress(FileExistsError):
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
        finally:
            os.close(fd)


def exposed(home: Path, database: str | Path) -> tuple[Path, ...]:
    """The home, and the files of a SQLite database elsewhere, if other users may reach into them by their modes."""
    files = (one for one in _database_files(database) if not one.is_relative_to(home))
    return tuple(one for one in (home, *sorted(files)) if _is_open_to_others(one))


def _is_open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError:
        return False


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
        file = expanded(unquote(rest.partition("?")[0]).removeprefix("/") if apart else address).absolute()
        files = {file, file.resolve()} if file.name else set()
        return tuple(one.with_name(one.name + end) for one in files for end in _BESIDE_SQLITE)
    asked = parse_qs(rest.partition("?")[2])
    named = {name: asked.get(name, [""])[0] for name in ("host", "passfile", "sslkey", "sslcert")}
    keys = [*(os.environ.get(name, "") for name in _POSTGRES_FILES), *list(named.values())[1:]]
    folders = [*(named["host"] or os.environ.get("PGHOST", "")).split(",")]
    sockets = [f"{folder}/.s.PGSQL.{port}" for folder in folders for port in _ports(asked) if folder.startswith("/")]
    if folder := os.environ.get("PGSYSCONFDIR"):
        keys.append(f"{folder}/pg_service.conf")
    return tuple(expanded(name).absolute() for name in (*keys, *sockets) if name)


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
