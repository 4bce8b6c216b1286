"""A PostgreSQL for tests: the one that RAMIFY_TEST_POSTGRES names, or a cluster of our own in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port


def binaries() -> Path | None:
    """The folder of initdb and postgres, where Debian puts it or on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    onpath = shutil.which("initdb")
    return found[-1].parent if found else Path(onpath).parent if onpath else None


def why_not() -> str:
    if "RAMIFY_TEST_POSTGRES" in os.environ or binaries() is not None:
        return ""
    return "no PostgreSQL: install it, or name one by RAMIFY_TEST_POSTGRES=postgresql://…"


@contextmanager
def server(parent: Path | None = None, *, durable: bool = False) -> Iterator[str]:
    """The address of a server that takes new databases. `parent`: where its folder is made. `durable`: see
    `own_server`."""
    given = os.environ.get("RAMIFY_TEST_POSTGRES")
    if given:
        yield given
        return
    with own_server(parent, durable=durable) as own:
        yield own.address


@dataclass(frozen=True)
class OwnServer:
    """A server that was started here. kill: kills it, and starts it again after so many seconds."""

    address: str
    kill: Callable[[float], None]


@contextmanager
def own_server(parent: Path | None = None, *, durable: bool = False) -> Iterator[OwnServer]:
    """Start a server. `parent`: where its folder is made. `durable`: a commit waits until the disk has it, as it does
    by PostgreSQL's default. Tests do without, because none cuts the power. What is measured needs it."""
    bin_folder = binaries()
    assert bin_folder is not None, why_not()
    with tempfile.TemporaryDirectory(prefix="ramify-pg-", dir=parent) as folder:
        if os.geteuid() == 0:  # postgres refuses to run as root
            shutil.chown(folder, "postgres")
        data, port = f"{folder}/data", free_port()
        _as_user(bin_folder / "initdb", "-D", data, "-U", "ramify", "--auth=trust", "-N").check_returncode()
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c max_connections=300"
        options += f" -c fsync={'on' if durable else 'off'}"
        # Four workers of DBOS ask for more than the 100 connections of a new server.

        def start() -> None:
            started = _as_user(bin_folder / "pg_ctl", "-D", data, "-o", options, "-l", f"{folder}/log", "-w", "start")
            if started.returncode:
                raise RuntimeError(Path(folder, "log").read_text() + started.stderr)

        def stop() -> None:
            _as_user(bin_folder / "pg_ctl", "-D", data, "-m", "immediate", "stop")

        def kill(for_s: float) -> None:
            stop()
            time.sleep(for_s)
            start()

        start()
        try:
            yield OwnServer(f"postgresql://ramify@127.0.0.1:{port}/postgres", kill)
        finally:
            stop()


def _as_user(*command: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    if os.geteuid() == 0:
        words = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *words]
    return subprocess.run(words, capture_output=True, text=True, cwd="/", timeout=150, check=False)


def new_database(address: str) -> str:
    """The address of an empty database on that server."""
    import psycopg

    name = f"t{time.time_ns()}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{address.rpartition('/')[0]}/{name}"
