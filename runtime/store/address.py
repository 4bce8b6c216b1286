"""Where a database is: a SQLite file, or a PostgreSQL server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ramify.runtime.errors import StoreError


@dataclass(frozen=True, slots=True)
class Address:
    """`file` is set for SQLite only. `str` shows it without its password."""

    url: URL
    file: Path | None

    @property
    def on_server(self) -> bool:
        return self.file is None

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True) if self.file is None else str(self.file)


def parse(address: str | Path) -> Address:
    """A path, `sqlite:///FILE` or `postgresql://HOST/DATABASE`. Raises `StoreError` for anything else."""
    if isinstance(address, Path) or "://" not in address:
        return _file(Path(address))
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise StoreError(_USAGE) from None  # not shown: it may hold a password
    match url.get_backend_name():
        case "sqlite" if url.database not in (None, "", ":memory:"):
            return _file(Path(str(url.database)))
        case "postgresql" | "postgres":
            return Address(url.set(drivername="postgresql+psycopg"), None)
        case "sqlite":
            raise StoreError("a database in memory keeps nothing: name a file, sqlite:///FILE")
        case other:
            raise StoreError(f"no store for {other}: {_USAGE}")


_USAGE = "give a database as sqlite:///FILE or postgresql://USER@HOST/DATABASE"


def _file(path: Path) -> Address:
    return Address(URL.create("sqlite", database=os.fspath(path)), path)
