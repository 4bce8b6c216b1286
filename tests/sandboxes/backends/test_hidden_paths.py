"""A world sees nothing of the journal, wherever the home and the database are."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ramify import Runtime, Sandbox, paths, step, workflow
from tests.machine import DATA_FOLDERS
from tests.samples import PATIENT

pytestmark = pytest.mark.linux_ns

MARKER = f"marker-{uuid.uuid4().hex[:8]}"  # of this process: others may search the whole machine at the same time
HALVES = (MARKER[:8], MARKER[8:])  # so that the command does not contain what it searches for


@step
async def search(sandbox: Sandbox, reference: str, places: list[str]) -> list[str]:
    """The files that contain the marker, found with the world's own find and grep, which must also find a control
    file."""
    pattern = f"'{HALVES[0]}''{HALVES[1]}'"
    said = await sandbox.run(
        f"echo {pattern} > here; find {' '.join(places)} . \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o "
        f"-type f -size -200M -newer {reference} -exec grep -laF {pattern} {{}} + 2>/dev/null | sort -u; rm here"
    )
    assert "./here" in said.stdout.splitlines()
    return [line for line in said.stdout.splitlines() if not line.endswith("/project/here") and line != "./here"]


@workflow
async def searching(reference: str, places: list[str], marker: str) -> list[str]:
    return await search(reference, places)


def on_the_host(place: Path) -> bool:
    """Whether the marker is where the search missed it: otherwise the search proves nothing."""
    return subprocess.run(["grep", "-rqaF", MARKER, str(place)]).returncode == 0


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's home, with a control file for the search in it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for name in ("RAMIFY_HOME", "RAMIFY_DATABASE", "XDG_DATA_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", folder)
        (Path(folder) / "reference").touch()
        yield Path(folder)


@pytest.fixture
def area() -> Iterator[Path]:
    """A data folder of the machine; for a user who may write in none, one that worlds do not see anyway."""
    within = next((one for one in DATA_FOLDERS if os.access(one, os.W_OK)), "/var/tmp")
    with tempfile.TemporaryDirectory(dir=within) as folder:
        yield Path(folder)


@pytest.fixture
def workspace(area: Path) -> Path:
    (area / "work" / "project").mkdir(parents=True)
    return area / "work" / "project"


def is_shown(folder: Path, *places: Path) -> bool:
    """Whether worlds see it. Of /var/tmp, where an ordinary user's area is, they see only `places`: the user's home,
    and the workspace."""
    return any(map(folder.is_relative_to, places)) or not folder.is_relative_to("/var/tmp")


def likely(*more: Path) -> list[str]:
    """The folders to search; only one test searches the whole machine, in CI's tier `patient`."""
    return [
        place for place in ("/etc", "/run", "/tmp", "/var/tmp", "/dev/shm", *map(str, more)) if Path(place).is_dir()
    ]


HOMES = ("default", "in the home", "in tmp", "in an area", "beside the workspace", "a link", "is the user's home")


@pytest.mark.parametrize("where", HOMES)
async def test_no_file_of_a_world_holds_the_journal(where: str, user: Path, area: Path, workspace: Path) -> None:
    if where == "in tmp" and not os.access("/tmp", os.W_OK):
        pytest.skip("this user may not write to /tmp")
    with ExitStack() as stack:
        homes: dict[str, Path | None] = {
            "default": None,
            "in the home": user / "projects" / "state",
            "in an area": area / "state",
            "beside the workspace": workspace.parent / ".ramify",
            "a link": area / "link",
            "is the user's home": user,
        }
        if where == "in tmp":
            homes[where] = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))) / "state"
        if where == "a link":
            (area / "real" / "state").mkdir(parents=True)
            (area / "link").symlink_to("real/state")
        async with Runtime(home=homes[where]) as runtime:
            everything = PATIENT and where == "default"
            places = ["/"] if everything else likely(user, area, runtime.home)
            found = await runtime.run(searching, f"{user}/reference", places, MARKER, workspace=workspace)
            assert on_the_host(runtime.home.resolve())
    assert found == []


PLACES = ("in the home", "in an area", "beside the workspace", "in the workspace")


@pytest.mark.parametrize(("where", "form"), [*((where, "a path") for where in PLACES), ("in an area", "an address")])
async def test_the_journal_is_hidden_if_the_database_is_elsewhere(
    where: str, form: str, user: Path, area: Path, workspace: Path
) -> None:
    folders = {"in the home": user / "db", "in an area": area / "db", "beside the workspace": workspace.parent}
    folder = folders.get(where, workspace)
    folder.mkdir(exist_ok=True)
    (folder / "other").write_text("to be seen\n")
    file = folder / "runs.sqlite"
    database = file if form == "a path" else f"sqlite:///{file}"
    for _ in range(2):  # the second run would find the first one's journal
        async with Runtime(database=database) as runtime:
            found = await runtime.run(searching, f"{user}/reference", likely(user, area), MARKER, workspace=workspace)
            assert found == []
            shown = "other\n" if is_shown(folder, user, workspace) else ""
            assert await runtime.run(look, str(folder), workspace=workspace) == shown
    assert on_the_host(folder)


@pytest.mark.parametrize("where", ["beside it", "in its folder", "around it"])
async def test_the_home_and_a_database_near_it_are_both_hidden(
    where: str, user: Path, area: Path, workspace: Path
) -> None:
    """A folder without the database's files is a mount of its own, which must not cover what hides the home."""
    home = area / "data/state"
    home.mkdir(parents=True)
    file = {"beside it": home.parent, "in its folder": home, "around it": area}[where] / "runs.sqlite"
    (area / "data/other").write_text("to be seen\n")
    for _ in range(2):
        async with Runtime(home=home, database=file) as runtime:
            found = await runtime.run(searching, f"{user}/reference", likely(user, area), MARKER, workspace=workspace)
            assert found == []
            if is_shown(area, user):
                assert "other\n" in await runtime.run(look, str(area / "data"), workspace=workspace)
            assert await runtime.run(look, str(home), workspace=workspace) == ""
    assert on_the_host(file.parent)


@pytest.mark.parametrize("how", ["named", "in the home"])
async def test_the_journal_is_hidden_if_a_link_leads_to_the_database(
    how: str, user: Path, area: Path, workspace: Path
) -> None:
    """SQLite keeps `-wal` and `-shm` beside the database itself, not beside the link."""
    real, home = area / "real", area / "state"
    for folder in (real, home):
        folder.mkdir()
    (real / "other").write_text("to be seen\n")
    link = area / "link.db" if how == "named" else home / "ramify.db"
    link.symlink_to(real / "runs.sqlite")
    async with Runtime(home=home, database=link if how == "named" else None) as runtime:
        assert await runtime.run(look, str(real), workspace=workspace) == ("other\n" if is_shown(real, user) else "")
        assert {path.name for path in real.iterdir()} > {"runs.sqlite", "runs.sqlite-wal", "other"}


@step
async def names(sandbox: Sandbox, folder: str) -> str:
    return (await sandbox.run(["ls", "-I", "project", folder])).stdout


@workflow
async def look(folder: str) -> str:
    return await names(folder)


async def test_the_default_home_is_hidden_while_another_is_in_use(user: Path, area: Path, workspace: Path) -> None:
    async with Runtime() as runtime:
        await runtime.run(searching, f"{user}/reference", [], MARKER, workspace=workspace)
    assert on_the_host(paths.home())
    async with Runtime(home=area / "state") as runtime:
        assert await runtime.run(searching, f"{user}/reference", likely(user, area), "", workspace=workspace) == []


async def test_the_default_database_is_hidden_while_another_is_in_use(
    user: Path, area: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMIFY_DATABASE", str(area / "usual.db"))
    async with Runtime() as runtime:
        await runtime.run(searching, f"{user}/reference", [], MARKER, workspace=workspace)
    assert on_the_host(area / "usual.db")
    async with Runtime(database=area / "other.db") as runtime:
        assert await runtime.run(searching, f"{user}/reference", likely(user, area), "", workspace=workspace) == []


async def test_logs_of_this_process_are_hidden(user: Path, area: Path, workspace: Path) -> None:
    handlers = [logging.FileHandler(folder / "log") for folder in (user, area)]
    logger = logging.getLogger("a program's own")
    try:
        for handler in handlers:
            logger.addHandler(handler)
        logger.error("%s", MARKER)
        async with Runtime() as runtime:
            assert (
                await runtime.run(searching, f"{user}/reference", likely(user, area), "", workspace=workspace) == []
            )
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
    assert on_the_host(user / "log")
    assert on_the_host(area / "log")


def test_url_of_a_database_server_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGSERVICEFILE", "PGSSLKEY", "PGSSLCERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSFILE", "/etc/mine/pgpass")
    monkeypatch.setenv("PGSYSCONFDIR", "/etc/mine")
    address = "postgresql://me:word@/runs?host=/srv/pg&port=5433"
    assert set(paths.private(Path("/home/x"), address)) == {
        Path("/home/x"),
        *(Path("/etc/mine") / name for name in ("pgpass", "pg_service.conf")),
        *(Path("/srv/pg") / f".s.PGSQL.{port}" for port in (5432, 5433)),
    }
