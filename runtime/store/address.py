"""Where a database is: a SQLite file, or a PostgreSQL server; our schema there, and the revisions of its tables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.runtime.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import URL


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a database: `file` for SQLite, `server` for PostgreSQL. `str` hides the password."""

    file: Path | None
    server: URL | None = None

    @property
    def url(self) -> URL:
        """The address as a SQLAlchemy URL. A file's address is read without SQLAlchemy."""
        if self.server is not None:
            return self.server
        from sqlalchemy import URL

        return URL.create("sqlite", database=os.fspath(self.file or ""))

    @property
    def on_server(self) -> bool:
        return self.file is None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that SQLite makes for the database, as resolved paths; empty for a server."""
        if self.file is None:
            return ()
        file = self.file.resolve()
        return tuple(file.with_name(file.name + end) for end in ("", "-wal", "-shm", "-journal"))

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True) if self.file is None else str(self.file)


def parse(address: str | Path) -> Address:
    """Parse a path, `sqlite:///FILE` or `postgresql://HOST/DATABASE`. Raises `StoreError` for anything else."""
    if isinstance(address, Path) or "://" not in address:
        return Address(Path(address))
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise StoreError(_USAGE) from None  # the address is not shown: it may contain a password
    match url.get_backend_name():
        case "sqlite" if url.database not in (None, "", ":memory:"):
            return Address(Path(str(url.database)))
        case "postgresql" | "postgres":
            return Address(None, url.set(drivername="postgresql+psycopg"))
        case "sqlite":
            raise StoreError("a database in memory is lost at the end: name a file, sqlite:///FILE")
        case other:
            raise StoreError(f"no store for {other}: {_USAGE}")


_USAGE = "give a database as sqlite:///FILE or postgresql://USER@HOST/DATABASE"


REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
VERSION_TABLE = "ramify_version"
SCHEMA = "ramify"
"""The schema of our tables on PostgreSQL, where a database may be shared."""
