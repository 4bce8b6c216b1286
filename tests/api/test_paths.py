"""What Ramify creates is for its user alone, whatever the umask."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

import ramify
from ramify import Runtime, paths
from ramify.fork_engine.errors import WorkspaceError
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.images.errors import ImagesError
from ramify.runtime.store import RunStore
from ramify.serving.engine import models
from ramify.serving.errors import ServingError
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World


def test_a_tilde_is_read_as_a_shell_reads_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert paths.expanded("~/x") == tmp_path / "x"
    assert paths.home("~no-user-of-this-name/x") == tmp_path / "~no-user-of-this-name" / "x"


async def test_a_tilde_of_nobody_is_a_folder_that_is_missing(home: Path) -> None:
    async with WorldHome(home, "copy") as opened:
        with pytest.raises(WorkspaceError, match="~no-user"):
            await World.create("~no-user-of-this-name/x", home=opened)
        with pytest.raises(ImagesError):
            await opened.images.pull("oci:~no-user-of-this-name/x")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAMIFY_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert paths.of_user() is None
    with pytest.raises(FileNotFoundError, match="RAMIFY_HOME"):
        paths.home()


@pytest.fixture(params=[0, 0o077], ids=["0", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def a_runtime(home: Path) -> None:
    async with Runtime(home=home, sandbox="copy"):
        pass


async def a_run_store(home: Path) -> None:
    async with RunStore(paths.database(home), clock=time.time) as store:
        await store.runs()


async def a_saver(home: Path) -> None:
    pytest.importorskip("langgraph")
    ramify.Saver(paths.database(home)).close()


async def a_pull_of_a_model(home: Path) -> None:
    def no_network(*arguments: object) -> None:
        raise OSError("no network")

    elsewhere = mock.patch.dict(os.environ, RAMIFY_HOME=str(home))  # the user's own home may have the weights
    with elsewhere, suppress(OSError, ServingError):
        models.pull(home, models.DEFAULT, runner=no_network)  # type: ignore[arg-type]


async def a_world_home(home: Path) -> None:
    async with WorldHome(home):
        pass


async def a_snapshot_store(home: Path) -> None:
    SnapshotStore(paths.snapshots(home))


async def locks(home: Path) -> None:
    async with Pins(paths.locks(home)).held():
        pass


MAKERS = [a_runtime, a_run_store, a_saver, a_pull_of_a_model, a_world_home, a_snapshot_store, locks]


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("make", MAKERS)
async def test_home_and_database_are_private(make: Callable[[Path], Awaitable[None]], tmp_path: Path) -> None:
    home = tmp_path / "above" / "home"
    await make(home)
    assert mode(home) == mode(home.parent) == 0o700
    assert {mode(file) for file in home.glob("ramify.db*")} <= {0o600}


def test_umask_does_not_take_the_users_own_rights(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        paths.make_private(tmp_path / "a" / "b")
        paths.make_private_file(tmp_path / "a" / "b" / "file")
    finally:
        os.umask(before)
    assert [mode(tmp_path / place) for place in ("a", "a/b", "a/b/file")] == [0o700, 0o700, 0o600]


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o750)
    paths.make_private(shared / "home")
    paths.make_private(shared)
    assert (mode(shared), mode(shared / "home")) == (0o750, 0o700)
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises(NotADirectoryError):
            paths.make_private(bad)


def test_exposed_homes_and_databases(tmp_path: Path) -> None:
    home, database = tmp_path / "home", tmp_path / "elsewhere.db"
    assert paths.exposed(home, database) == ()
    paths.make_private(home)
    paths.make_private_file(database)
    assert paths.exposed(home, database) == paths.exposed(home, "postgresql://host/db") == ()
    home.chmod(0o755)
    database.chmod(0o640)
    assert paths.exposed(home, database) == (home, database)
