"""The limits of worlds, and that the host survives a world that exceeds them. Small limits: two cores are enough."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent import watchdog
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import MIB, Limit, Limits, World, WorldSpec
from ramify.sandboxes.errors import WorldDied
from ramify.sandboxes.linux import resource_limits
from ramify.sandboxes.linux.resource_limits import Bounds

Out = Callable[[World, str], Awaitable[str]]
Make = Callable[..., Awaitable[World]]

PATIENCE = 60.0  # seconds for a command that a limit should end: if none does, the test fails instead of hanging


@pytest.fixture
def make(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec) -> Make:
    async def make(**asked: int) -> World:
        return await namespaces.materialise(base, replace(spec, limits=Limits(**asked)))

    return make


def hog(megabytes: int) -> str:
    """A command that holds this much memory in one process."""
    return f"{sys.executable} -c 'import time; held = bytearray({megabytes} << 20); time.sleep(99)'"


def test_the_agents_bounds_are_the_contracts_limits() -> None:
    assert [f.name for f in fields(Bounds)] == [f.name for f in fields(Limits)]


def test_a_look_that_waits_for_a_processor_does_not_put_off_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a disk limit acted tens of seconds late."""
    watched = watchdog.Watchdog(Bounds(), os.getpid())
    monkeypatch.setattr(watchdog, "EVERY_S", 0.0)
    watched.begin()
    monkeypatch.setattr(watchdog, "usage", lambda _: time.sleep(0.5) or watchdog.Usage((1,), 1, 0))
    assert watched.check(()) == ""
    waits = watched.wait_s()
    assert waits is not None
    assert waits < 0.5 * watchdog.SHARE / 2


pytestmark = pytest.mark.linux_ns


async def test_a_fork_bomb_is_killed_and_named(make: Make, out: Out) -> None:
    world = await make(processes=100)
    result = await world.run("bomb() { bomb | bomb & }; bomb; sleep 99", timeout=PATIENCE)
    assert (result.limit, result.exit_code, result.timed_out) == (Limit.PROCESSES, 137, False)
    assert await world.background_processes() == 0
    assert await out(world, "echo well") == "well\n"


async def test_threads_count_as_processes(make: Make, out: Out) -> None:
    world = await make(processes=60)
    threads = "import threading, time\nfor _ in range(80): threading.Thread(target=time.sleep, args=(99,)).start()"
    assert (await world.run([sys.executable, "-c", threads], timeout=PATIENCE)).limit is Limit.PROCESSES
    assert await world.background_processes() == 0


async def test_a_memory_hog_is_killed_and_named(make: Make, out: Out) -> None:
    world = await make(memory_bytes=100 * MIB)
    result = await world.run(hog(300), timeout=PATIENCE)
    assert (result.limit, result.exit_code) == (Limit.MEMORY, 137)
    assert await out(world, "echo well") == "well\n"


async def test_many_small_processes_are_a_memory_hog_too(make: Make) -> None:
    world = await make(memory_bytes=100 * MIB)
    result = await world.run(f"{hog(30)} & " * 6 + "wait", timeout=PATIENCE)
    assert result.limit is Limit.MEMORY


async def test_shared_memory_counts_once(make: Make, out: Out) -> None:
    world = await make(memory_bytes=120 * MIB)
    family = (
        "import os, time\nheld = bytes(60 << 20)\n"
        "for _ in range(8):\n if os.fork() == 0: time.sleep(0.8); os._exit(0)\n"
        "for _ in range(8): os.wait()\nprint('all')"
    )
    result = await world.run([sys.executable, "-c", family], timeout=PATIENCE)
    assert (result.stdout, result.limit) == ("all\n", Limit.NONE)


async def test_files_on_memory_file_systems_are_memory(make: Make, out: Out) -> None:
    world = await make(memory_bytes=100 * MIB)
    try:
        result = await world.run("head -c 200M /dev/zero > /dev/shm/big; sleep 99", timeout=PATIENCE)
    except WorldDied as died:  # the kernel was faster than the watchdog: killing a process does not free such memory
        assert "exceeded its memory limit" in str(died)
    else:
        assert result.limit is Limit.MEMORY


async def test_file_systems_in_memory_hold_a_bounded_number_of_files(make: Make, out: Out) -> None:
    """Empty files have no bytes that a limit on memory or on the disk would count."""
    world = await make()
    attack = (
        "import os\n"
        "mounts = [line.split() for line in open('/proc/mounts')]\n"
        "places = [mount[1] for mount in mounts if mount[2] == 'tmpfs' and os.access(mount[1], os.W_OK)]\n"
        "for place in places: print(place, os.statvfs(place).f_files)\n"
        "for at in range(200_000): os.close(os.open(f'/dev/shm/{at}', os.O_CREAT))\n"
    )
    result = await world.run(["python3", "-c", attack], timeout=PATIENCE)
    bounds = dict(line.split() for line in result.stdout.splitlines())
    assert "/dev/shm" in bounds
    assert all(0 < int(files) <= 1 << 16 for files in bounds.values()), bounds
    assert "No space left on device" in result.stderr


async def test_a_hog_left_by_an_earlier_command_is_killed_and_reported(make: Make, out: Out) -> None:
    world = await make(memory_bytes=100 * MIB)
    later = f"(until [ -e go ]; do sleep 0.01; done; exec {hog(300)}) >/dev/null 2>&1 &"
    assert (await world.run(later)).limit is Limit.NONE
    (world.path / "go").touch()
    for _ in range(600):
        if await world.background_processes() == 0:
            break
        await asyncio.sleep(0.05)
    result = await world.run("echo well")
    assert (result.stdout, result.limit, result.earlier) == ("well\n", Limit.NONE, Limit.MEMORY)
    assert (await world.run("true")).earlier is Limit.NONE


@pytest.mark.parametrize("place", [".", "/tmp", "~"])
async def test_a_full_disk_only_affects_its_own_world(make: Make, out: Out, place: str) -> None:
    world = await make(disk_bytes=20 * MIB)
    result = await world.run(f"head -c 60M /dev/zero > {place}/big; sleep 99", timeout=PATIENCE)
    assert (result.limit, result.exit_code) == (Limit.DISK, 137)
    assert (await world.run(f"sleep 0.5; rm {place}/big; sleep 0.5")).limit is Limit.NONE  # it can be repaired
    assert await out(world, "ls") == "link\npackage\nreadme.txt\nrun.sh\n"


async def test_a_file_without_a_name_is_weighed_while_it_is_open(make: Make, out: Out) -> None:
    world = await make(disk_bytes=20 * MIB)
    code = "import os, time; f = open('gone', 'wb', 0); os.unlink('gone')\n"
    code += "for _ in range(40): f.write(os.urandom(1 << 20))\ntime.sleep(99)"
    assert (await world.run([sys.executable, "-c", code], timeout=PATIENCE)).limit is Limit.DISK
    assert await out(world, "echo well") == "well\n"


async def test_a_million_empty_files_are_a_full_disk_too(make: Make) -> None:
    world = await make(disk_bytes=8 * MIB)
    many = "import os\nfor n in range(10**7): os.close(os.open(f'f{n}', os.O_CREAT))"
    result = await world.run([sys.executable, "-c", many], timeout=PATIENCE)
    assert result.limit is Limit.DISK
    assert len(list(world.path.iterdir())) < 1_000_000


def test_folders_too_deep_to_name_are_weighed(tmp_path: Path) -> None:
    deep = (
        "import os\nfor n in range(40): os.mkdir('d' * 200); os.chdir('d' * 200)\nopen('f', 'w').write('x' * 50000)"
    )
    subprocess.run([sys.executable, "-c", deep], cwd=tmp_path, check=True)
    folder = os.open(tmp_path, os.O_PATH)
    try:
        *_, total = watchdog.disk_usage(folder)
    finally:
        os.close(folder)
    assert 50_000 + 40 * 4096 <= total < 50_000 + 60 * 8192


async def test_a_file_may_be_only_so_big(make: Make, out: Out) -> None:
    world = await make(file_bytes=MIB)
    result = await world.run("head -c 4M /dev/zero > big")
    assert result.exit_code != 0
    assert (world.path / "big").stat().st_size == MIB
    assert (await world.run("exec head -c 4M /dev/zero > big")).limit is Limit.FILE
    assert await out(world, "echo well") == "well\n"


async def test_descriptors_run_out_for_the_command_alone(make: Make, out: Out) -> None:
    world = await make(open_files=64)
    every = "import os\ntry:\n while True: os.dup(0)\nexcept OSError as error: print(error.errno)"
    assert (await world.run([sys.executable, "-c", every])).stdout == "24\n"
    assert (await world.run("ulimit -n 65; ulimit -Hn 65")).exit_code != 0
    assert await out(world, "echo well") == "well\n"


async def test_a_world_leaves_the_host_a_share_of_per_user_resources(make: Make, out: Out) -> None:
    """The world's user is the host's too: what it uses up is missing for the host, even in another namespace."""
    world = await make()
    for kind in ("instances", "watches"):
        all_of_it = int(Path(f"/proc/sys/fs/inotify/max_user_{kind}").read_text())
        allowed = int(await out(world, f"cat /proc/sys/user/max_inotify_{kind}"))
        assert allowed == all_of_it - all_of_it // 4
    greedy = "import ctypes; libc = ctypes.CDLL(None); print(sum(libc.inotify_init() >= 0 for _ in range(5000)))"
    allowed = int(await out(world, "cat /proc/sys/user/max_inotify_instances"))
    assert 0 <= int(await out(world, f'{sys.executable} -c "{greedy}"')) <= allowed
    assert not (await world.run("echo 9999 > /proc/sys/user/max_inotify_instances")).ok


async def test_processor_time_runs_out(make: Make, out: Out) -> None:
    world = await make(cpu_s=1)
    result = await world.run(f"{sys.executable} -c 'while True: pass'", timeout=PATIENCE)
    assert (result.limit, result.exit_code) == (Limit.CPU, 152)
    assert await out(world, "echo well") == "well\n"


async def test_no_core_is_written_or_piped_to_the_host(make: Make, out: Out) -> None:
    world = await make()
    assert await out(world, "ulimit -Hc; grep -c 'Max core file size *1 *1 ' /proc/self/limits") == "0\n1\n"
    await world.run("bash -c 'kill -SEGV $$'")
    assert await out(world, "ls") == "link\npackage\nreadme.txt\nrun.sh\n"


FULL = """
import asyncio, sys
from pathlib import Path
from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.errors import SandboxError
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend

async def main(root):
    (root / "tree").mkdir()
    store = SnapshotStore(root / "store")
    base = store.import_tree(root / "tree").snapshot
    async with NamespaceBackend(store, root / "worlds") as backend:
        world = await backend.materialise(base, WorldSpec(mount_at=Path("/tmp/tree")))
        result = await world.run("head -c 40M /dev/zero > big; (sleep 9 &) ; echo after")
        print(result.limit.name, "No space" in result.stderr, "after" in result.stdout)
        try:
            await world.seal()  # a process lives, so it has to copy
            print("sealed")
        except SandboxError as error:
            print(type(error).__name__, "No space" in str(error))
        print((await world.run("rm big; pkill sleep; echo well")).stdout.strip())
        await world.seal()
    print("closed")

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_disk_that_is_really_full_is_a_typed_error(tmp_path: Path) -> None:
    """In its own mount namespace, on a small memory file system."""
    mounted = f'mount -t tmpfs -o size=8m none {tmp_path} && exec {sys.executable} -c "$1" {tmp_path}'
    shell = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh", FULL]
    env = {**os.environ, "HOME": "/"}  # not in the folder that the disk is mounted in
    done = subprocess.run(shell, capture_output=True, text=True, timeout=PATIENCE, env=env)
    assert done.stdout.splitlines() == ["NONE True True", "SealFailed True", "well", "closed"], done.stderr


def test_no_limit_is_ever_raised() -> None:
    """Whatever a world asks for, it gets no more than the host's own process."""
    script = (
        "import resource as r, sys\nfrom ramify.sandboxes.linux import resource_limits as limits\n"
        "from ramify.sandboxes.linux.resource_limits import Bounds\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (50, 60))\n"
        "limits.apply(Bounds(open_files=1000), isolated=False)\nprint(r.getrlimit(r.RLIMIT_NOFILE))\n"
        "limits.apply(Bounds(open_files=30), isolated=False)\nprint(r.getrlimit(r.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "(50, 60)\n(30, 30)\n"


def test_the_limit_that_an_exit_code_shows() -> None:
    bounds = Bounds(cpu_s=1, file_bytes=1)
    assert [resource_limits.limit_behind_exit_code(bounds, code) for code in (0, 1, 137, 152, 153)] == [
        "",
        "",
        "",
        "cpu_s",
        "file_bytes",
    ]
    assert [resource_limits.limit_behind_exit_code(Bounds(), code) for code in (152, 153)] == ["", ""]
