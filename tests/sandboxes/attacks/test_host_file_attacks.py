"""A world sees the host's files through its own inodes: its locks, leases and watches affect nobody outside."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from tests.machine import DATA_FOLDERS
from tests.samples import PATIENT, sample
from tests.sandboxes.attack_helpers import PATIENCE, python

pytestmark = pytest.mark.linux_ns

Out = Callable[[World, str], Awaitable[str]]
ROOT = os.geteuid() == 0
NOBODY = 65534
GIVEN_AREA = "RAMIFY_TEST_AREA"
AREAS = (*filter(None, [os.environ.get(GIVEN_AREA)]), *DATA_FOLDERS)


def area() -> str:
    """A data folder of the machine that this user may write to. Skips without one."""
    for folder in AREAS:
        if os.access(folder, os.W_OK):
            return folder
    pytest.skip(f"none of {', '.join(AREAS)} is this user's to write to")


@pytest.fixture(params=["shown", "in an area", "in the home"])
def data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the host that worlds see."""
    within = area() if request.param == "in an area" else "/var/tmp"
    with tempfile.TemporaryDirectory(dir=within) as folder:
        if request.param == "in the home":
            monkeypatch.setenv("HOME", folder)
        place = Path(folder, "data")
        place.mkdir(mode=0o755)
        Path(folder).chmod(0o755)
        (place / "file").write_text("as it was\n")
        yield place


@pytest.fixture
async def world(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, data: Path) -> World:
    return await namespaces.materialise(base, replace(spec, visible=(*spec.visible, data)))


@pytest.fixture
async def namespaces(store: SnapshotStore, scratch: Path, data: Path) -> AsyncIterator[NamespaceBackend]:
    async with NamespaceBackend(store, scratch) as opened:
        yield opened


@pytest.fixture
def hold() -> Callable[[World, str], Awaitable[None]]:
    """Run Python in a world until the world ends, starting once it has printed "held"."""

    async def hold(world: World, text: str) -> None:
        code = f"import time\n{text}\nprint('held', flush=True)\ntime.sleep(1000)\n"
        begun = await world.run(
            f"cat > /tmp/holder.py; setsid {sys.executable} /tmp/holder.py > /tmp/held 2>&1 & "
            "for _ in $(seq 1500); do grep -q . /tmp/held 2>/dev/null && break; sleep .02; done; "
            "sleep .02; cat /tmp/held",
            stdin=code,
            timeout=PATIENCE * 2,
        )
        assert begun.stdout == "held\n", begun.stdout + begun.stderr

    return hold


LOCKS = {
    "flock, exclusive": "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
    "flock, shared": "fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)",
    "record lock": "fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)",
    "lock of an open file": "fcntl.fcntl(fd, 37, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0))",  # F_OFD_SETLK
}


@pytest.mark.parametrize("lock", LOCKS)
async def test_locks_inside_do_not_block_the_host(
    world: World, data: Path, hold: Callable[[World, str], Awaitable[None]], lock: str
) -> None:
    await hold(world, f"import fcntl, os, struct\nfd = os.open('{data}/file', os.O_RDONLY)\n{LOCKS[lock]}")
    with (data / "file").open("r+") as file:
        (fcntl.flock if lock.startswith("flock") else fcntl.lockf)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_folder_locks_inside_do_not_block_the_host(
    world: World, data: Path, hold: Callable[[World, str], Awaitable[None]]
) -> None:
    await hold(world, f"import fcntl, os\nfd = os.open('{data}', os.O_RDONLY)\nfcntl.flock(fd, fcntl.LOCK_EX)")
    folder = os.open(data, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)


async def test_a_database_of_the_host_cannot_be_locked_from_inside(
    world: World, data: Path, hold: Callable[[World, str], Awaitable[None]]
) -> None:
    """For other programs' databases: Ramify's own is hidden."""
    with closing(sqlite3.connect(data / "other.db", timeout=0, isolation_level=None)) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table t (a)")
        take = "fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 8, 120)"  # every lock that SQLite uses there
        await hold(world, f"import fcntl, os\nfd = os.open('{data}/other.db-shm', os.O_RDONLY)\n{take}")
        database.execute("insert into t values (1)")
        assert database.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0


async def test_leases_inside_do_not_block_the_host(
    world: World, data: Path, hold: Callable[[World, str], Awaitable[None]]
) -> None:
    take = "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)"
    await hold(world, f"import fcntl, os\nfd = os.open('{data}/file', os.O_RDONLY)\n{take}")
    os.close(os.open(data / "file", os.O_WRONLY | os.O_NONBLOCK))


async def test_a_program_that_runs_inside_can_be_written_outside(world: World, data: Path, out: Out) -> None:
    shutil.copy(shutil.which("sleep") or "/bin/sleep", data / "program")
    await out(world, f"setsid {data}/program 1000 >/dev/null 2>&1 & until pgrep -x program; do sleep .02; done")
    os.close(os.open(data / "program", os.O_WRONLY))


async def test_writes_to_a_fifo_inside_reach_no_reader_outside(world: World, data: Path) -> None:
    os.mkfifo(data / "fifo")
    (data / "fifo").chmod(0o666)
    reader = os.open(data / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        text = f"import os\nos.write(os.open('{data}/fifo', os.O_WRONLY | os.O_NONBLOCK), b'from inside')"
        assert (await world.run(python(text))).exit_code != 0
        assert os.read(reader, 100) == b""
        text = f"import os\nfd = os.open('{data}/fifo', os.O_RDWR | os.O_NONBLOCK); os.write(fd, b'from inside')"
        await world.run(python(text))
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)


@pytest.mark.parametrize("kind", ["stream", "datagram"])
@pytest.mark.parametrize("whose", ["this user's", "another's"])
async def test_no_socket_in_the_hosts_folders_answers(world: World, data: Path, kind: str, whose: str) -> None:
    if whose == "another's" and not ROOT:
        pytest.skip("only root gives a socket away")
    number = socket.SOCK_STREAM if kind == "stream" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_UNIX, number) as server:
        server.bind(str(data / "socket"))
        (data / "socket").chmod(0o777 if whose == "this user's" else 0o700)
        if whose == "another's":
            os.chown(data / "socket", NOBODY, NOBODY)
        if kind == "stream":
            server.listen()
        text = f"import socket\nsocket.socket(socket.AF_UNIX, {int(number)}).connect('{data}/socket')"
        tried = await world.run(python(text))
        assert re.search("ConnectionRefused|FileNotFound|PermissionError", tried.stderr), tried
        with socket.socket(socket.AF_UNIX, number) as client:
            client.connect(str(data / "socket"))  # it would have answered


WATCH = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
for path in sys.argv[1:]:
    if libc.inotify_add_watch(watch, path.encode(), 0xFFF) < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
"""


WATCHING = """
open("watching", "w").close()
while not os.path.exists("enough"):
    if select.select([watch], [], [], 0.02)[0]:
        sys.exit("an event")
print(len(select.select([watch], [], [], 0.1)[0]), "events")
"""


async def test_watches_inside_see_no_changes_outside(world: World, data: Path) -> None:
    begun = asyncio.create_task(
        world.run(f"{sys.executable} - {data} {data}/file", stdin=WATCH + WATCHING, timeout=PATIENCE)
    )
    while not (world.path / "watching").exists() and not begun.done():  # noqa: ASYNC110  # a world sets no event here
        await asyncio.sleep(0.01)
    for turn in range(30):
        (data / "file").write_text(f"{turn}\n")
        (data / f"new-{turn}").touch()
    (world.path / "enough").touch()
    done = await begun
    assert done.stdout == "0 events\n", done.stderr


async def test_files_of_the_host_can_be_read_and_not_changed(world: World, data: Path, out: Out) -> None:
    """Files cannot be changed, except in the home, where changes belong to the world."""
    assert await out(world, f"cat {data}/file; stat -c %a {data}") == "as it was\n755\n"
    await world.run(f"echo x > {data}/file; touch {data}/new; chmod 777 {data}; rm -f {data}/file")
    assert [(path.name, path.read_text()) for path in data.iterdir()] == [("file", "as it was\n")]
    assert data.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(not ROOT, reason="an ordinary user has no such rights")
async def test_root_inside_is_bound_by_file_modes(world: World, data: Path, out: Out) -> None:
    (data / "theirs").write_text("not for you\n")
    (data / "theirs").chmod(0o600)
    os.chown(data / "theirs", NOBODY, NOBODY)
    assert "Permission denied" in (await world.run(f"cat {data}/theirs")).stderr
    own = "mkdir -p x/y && chmod 700 x && echo mine > x/y/z && chmod 400 x/y/z && cat x/y/z && rm -r x"
    assert await out(world, own) == "mine\n"
    await out(world, "touch theirs && chown 65534:65534 theirs && cat theirs && chown 0:0 theirs && rm theirs")


# What is mounted on the host


@contextmanager
def mounting(script: str, *arguments: str | Path) -> Iterator[list[str]]:
    """Run a script that may mount anything; return the lines that it printed."""
    if not ROOT:
        pytest.skip("mounting is root's")
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    yield done.stdout.splitlines()


HOST = """
import asyncio, fcntl, json, os, sys
from pathlib import Path
from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes import doctor
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.linux import kernel
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend

root, data = Path(sys.argv[1]), Path(sys.argv[2])

async def run(*commands, places=()):
    (root / "tree").mkdir(exist_ok=True)
    store = SnapshotStore(root / "store")
    base = store.import_tree(root / "tree").snapshot
    backend = NamespaceBackend(store, root / "worlds")
    backend.hide(*places)
    async with backend:
        world = await backend.materialise(base, WorldSpec(mount_at=root / "tree"))
        for command in commands:
            done = await world.run(command)
            print(json.dumps(done.stdout + done.stderr), flush=True)
"""

BELOW = """
(data / "sub/inner").mkdir(parents=True)
(data / "plain").mkdir()
(data / "plain/file").touch()
(data / "beside").write_text("beside\\n")
(data / "link").symlink_to("beside")
os.mkfifo(data / "fifo")
kernel.mount("none", str(data / "sub/inner"), "tmpfs")
(data / "sub/inner/file").write_text("inner\\n")
held = [os.open(data / name, os.O_RDWR) for name in ("plain/file", "sub/inner/file")]
hold = "exec 7<{0}/plain/file 8<{0}/sub/inner/file; flock -n 7; flock -n 8; echo locked".format(data)
look = "cd {0}; cat beside link sub/inner/file; test -e fifo || echo no fifo; ".format(data)
look += "touch new sub/new sub/inner/new"

async def main():
    task = asyncio.create_task(run(look, hold + "; sleep 2"))
    while not task.done():  # never refused, while the world holds its locks, too
        await asyncio.sleep(0.1)
        for fd in held:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(fd, fcntl.LOCK_UN)
    await task

asyncio.run(main())
print(json.dumps(doctor.namespaces(root / "worlds").notes))
"""


def test_what_is_mounted_below_a_folder_is_an_overlay_too(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=area()) as data, mounting(HOST + BELOW, tmp_path, data) as lines:
        looked, locked, notes = map(json.loads, lines)
    assert looked.startswith("beside\nbeside\ninner\nno fifo\n")
    assert looked.count("Read-only file system") == 3
    assert locked == "locked\n"
    told = f"locks, leases and watches from inside reach files directly in {data} (1): something is mounted below it"
    assert told in notes


PROC = """
kernel.mount("proc", str(data), "proc")
os.environ["PLANTED"] = "a secret of the host's"
async def main():
    await run(f"ls {data}; cat {data}/{os.getpid()}/environ {data}/1/environ; echo done")
asyncio.run(main())
"""


def test_a_second_proc_of_the_host_is_not_shown(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=area()) as data, mounting(HOST + PROC, tmp_path, data) as lines:
        (told,) = map(json.loads, lines)
    assert re.fullmatch(
        r"(cat: .*No such file or directory\n){0,2}done\n(cat: .*No such file or directory\n){0,2}", told
    )


NAMES = """
(data / "home").mkdir()
(data / "home/journal").write_text("of all runs")
(data / "again").mkdir()
(data / "part").mkdir()
kernel.bind(str(data), str(data / "again"))
kernel.bind(str(data / "home"), str(data / "part"))
async def main():
    await run(f"find {data}; cat {data}/*/journal {data}/again/home/journal", places=(data / "home",))
asyncio.run(main())
"""


def test_a_hidden_folder_is_hidden_under_its_other_names(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=area()) as data, mounting(HOST + NAMES, tmp_path, data) as lines:
        (told,) = map(json.loads, lines)
    assert "of all runs" not in told
    assert {f"{data}/home", f"{data}/part", f"{data}/again/home"} <= set(told.splitlines())


HOME = """
os.environ["HOME"] = str(data)
(data / "mounted").mkdir()
kernel.mount("none", str(data / "mounted"), "tmpfs")
async def main():
    try:
        await run("true")
    except WorldStartFailed as error:
        print(json.dumps(str(error)))
asyncio.run(main())
"""


def test_a_mount_inside_the_home_is_named(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=area()) as data, mounting(HOST + HOME, tmp_path, data) as lines:
        (told,) = map(json.loads, lines)
    assert told.startswith(f"{data}/mounted is mounted inside the home folder {data}")


@pytest.mark.skipif(not ROOT, reason="this is one")
def test_host_files_are_protected_from_worlds_of_an_ordinary_user() -> None:
    """Every test of this file, as that user; unless CI asks for all, those whose data folder is in the home."""
    which = [] if PATIENT else ["-k", "home or below or proc or names"]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, tempfile.TemporaryDirectory(dir=area()) as theirs:
        environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{folder}/site"}
        environment |= {"HOME": folder, "TMPDIR": folder, GIVEN_AREA: theirs}
        packages = [path for path in sys.path if path.endswith("-packages")]
        Path(folder, "site").mkdir()
        Path(folder, "site", "sitecustomize.py").write_text(
            f"import site\nfor path in {packages}: site.addsitedir(path)"
        )
        for path in (Path(folder), Path(folder, "site"), Path(theirs)):
            path.chmod(0o755)
            os.chown(path, NOBODY, NOBODY)
        user = [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            "env",
        ]  # setpriv has root's rights
        asked = f"import pytest, ramify, sqlalchemy, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        for interpreter in (sys.executable, f"/usr/bin/python3.{sys.version_info[1]}", "/usr/bin/python3"):
            words = [*user, interpreter]
            if subprocess.run([*words, "-c", asked], env=environment, cwd="/", capture_output=True).returncode == 0:
                break
        else:
            pytest.skip("no Python that an ordinary user can run has what tests need")
        done = subprocess.run(
            [*words, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", f"{folder}/tmp", *which, __file__],
            env=environment,
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    passed = re.search(r"\b(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= sample(10, 30), done.stdout
