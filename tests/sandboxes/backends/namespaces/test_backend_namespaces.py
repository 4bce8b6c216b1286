"""What the namespace backend promises beyond the contract: isolation, and complete clean-up."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import SandboxError, SealFailed, WorldDied, WorldStartFailed, explain_file_limit
from ramify.sandboxes.linux import processes

pytestmark = pytest.mark.linux_ns

Out = Callable[[World, str], Awaitable[str]]


@pytest.fixture
async def world(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec) -> World:
    return await namespaces.materialise(base, spec)


async def test_the_host_cannot_be_written(world: World, names_in_tmp: set[str], out: Out) -> None:
    for place in (Path("/usr"), Path("/etc"), Path("/var/lib"), Path("/")):
        result = await world.run(["touch", str(place / "ramify-was-here")])
        assert result.exit_code != 0
        assert not (place / "ramify-was-here").exists()
    await out(world, "touch ~/ramify-was-here /tmp/ramify-was-here /var/tmp/ramify-was-here /dev/shm/mine")
    seen = (await out(world, "ls /tmp; ls -d ~/ramify-was-here")).split()
    assert {*seen} == {"ramify-was-here", str(Path.home() / "ramify-was-here")} | names_in_tmp
    assert not Path("/tmp/ramify-was-here").exists()
    assert not (Path.home() / "ramify-was-here").exists()
    assert (await world.run("mount -o remount,rw / || umount /proc || mount -t tmpfs none /mnt")).exit_code != 0


async def test_nothing_of_the_host_is_changed_through_proc_and_dev(world: World, out: Out) -> None:
    assert (await world.run("echo 1 > /proc/sys/vm/drop_caches")).exit_code != 0
    assert (await world.run("echo h > /proc/sysrq-trigger")).exit_code != 0
    assert (await world.run("mknod disk b 8 0")).exit_code != 0
    assert set((await out(world, "ls /dev")).split()) <= {
        *(
            "fd",
            "full",
            "null",
            "ptmx",
            "pts",
            "random",
            "shm",
            "stderr",
            "stdin",
            "stdout",
            "tty",
            "urandom",
            "zero",
        ),
    }
    assert await out(world, "echo x > /dev/null; head -c 3 /dev/zero | od -An -tx1") == " 00 00 00\n"


async def test_there_is_no_network(world: World, out: Out) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await world.run(f"exec 5<>/dev/tcp/127.0.0.1/{port}")
        assert "refused" in result.stderr
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
    assert "unreachable" in (await world.run("exec 5<>/dev/tcp/192.0.2.1/80")).stderr
    assert (await out(world, "cat /proc/net/dev | tail -n +3 | cut -d: -f1")).split() == ["lo"]


async def test_the_store_and_other_worlds_are_hidden(
    world: World, namespaces: NamespaceBackend, store: SnapshotStore, scratch: Path, home_workspace: Path, out: Out
) -> None:
    for place in (store.root, scratch):
        assert place.is_dir()
        assert (await world.run(f"ls -A {place}")).stdout == ""
    store_at_home = SnapshotStore(home_workspace / "store")  # not below a place that is hidden anyway
    tree = home_workspace / "tree"
    tree.mkdir()
    (tree / "file").touch()
    snapshot = store_at_home.import_tree(tree).snapshot
    async with NamespaceBackend(store_at_home, home_workspace / "worlds") as backend:
        inside = await backend.materialise(snapshot, WorldSpec(mount_at=tree))
        assert await out(inside, "pwd; ls") == f"{tree}\nfile\n"
        for folder in ("store", "worlds"):
            assert await out(inside, f"ls -A {home_workspace / folder}; cd {home_workspace / folder}; ls -A") == ""
            assert (await inside.run(f"touch {home_workspace / folder}/x")).exit_code != 0


async def test_processes_of_the_host_are_hidden(world: World, out: Out) -> None:
    pids = {int(name) for name in (await out(world, "cd /proc; echo [0-9]*")).split()}
    assert min(pids) == 1
    assert len(pids) == 2  # the agent and bash, which expanded the glob itself
    assert (await world.run(f"kill -0 {os.getpid()}")).exit_code != 0


async def test_commands_cannot_touch_their_agent(world: World, out: Out) -> None:
    for attempt in ("kill -9 1", "kill -TERM 1", "kill -INT 1", "kill -STOP 1"):
        await world.run(attempt)
    for attempt in ("ls -l /proc/1/fd/", "cat /proc/1/mem", "cat /proc/1/environ"):
        assert (await world.run(attempt)).exit_code != 0
    told = await out(world, "grep -E 'NoNewPrivs|CapEff' /proc/self/status")
    allowed = 0x8000_24F9 if os.geteuid() == 0 else 0
    assert told.split() == ["CapEff:", f"{allowed:016x}", "NoNewPrivs:", "1"]


async def test_descriptors_do_not_leak_into_commands(world: World, out: Out) -> None:
    assert (await out(world, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]  # 3 is ls's own
    assert (await out(world, "bash -c 'ls /proc/self/fd' | cat")).split() == ["0", "1", "2", "3"]


async def test_user_ids_stay_the_same(world: World, out: Out) -> None:
    assert await out(world, "id -u; stat -c %u:%g readme.txt") == f"{os.geteuid()}\n{os.geteuid()}:{os.getegid()}\n"
    await out(world, "touch mine")
    assert (world.path / "mine").stat().st_uid == os.geteuid()


async def test_home_is_the_users_own_by_default(
    world: World, namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    assert await out(world, "echo $HOME") == f"{Path.home()}\n"
    other = await namespaces.materialise(base, replace(spec, env={"HOME": "/var/tmp"}))
    assert await out(other, "cd; pwd; env") == (
        "/var/tmp\nPWD=/var/tmp\nHOME=/var/tmp\nSHLVL=1\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        f"OLDPWD={spec.mount_at}\n_=/usr/bin/env\n"
    )


async def test_the_tree_may_be_under_home(
    namespaces: NamespaceBackend, store: SnapshotStore, home_workspace: Path, out: Out
) -> None:
    snapshot = store.import_tree(home_workspace).snapshot
    world = await namespaces.materialise(snapshot, WorldSpec(mount_at=home_workspace))
    assert await out(world, "pwd; cat here.txt; echo changed > here.txt") == f"{home_workspace}\nat home\n"
    assert (home_workspace / "here.txt").read_text() == "at home\n"
    await world.seal()
    assert await out(world, "cat here.txt") == "changed\n"


async def test_the_tree_may_be_at_a_path_that_does_not_exist(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    world = await namespaces.materialise(base, replace(spec, mount_at=Path("/tmp/never/was/here")))
    assert await out(world, "pwd; cat readme.txt") == "/tmp/never/was/here\nas it was\n"
    with pytest.raises(WorldStartFailed, match="/never-was does not exist on this machine"):
        await namespaces.materialise(base, replace(spec, mount_at=Path("/never-was")))


async def test_a_hidden_place_can_be_made_visible(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path, out: Out
) -> None:
    tools = tmp_path / "tools"
    (tools / "bin").mkdir(parents=True)
    (tools / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (tools / "bin" / "hello").chmod(0o755)
    file = tmp_path / "file.txt"
    file.write_text("one file\n")
    world = await namespaces.materialise(base, replace(spec, visible=(tools, file)))
    assert await out(world, f"{tools}/bin/hello; cat {file}") == "hello\none file\n"
    assert (await world.run(f"touch {tools}/x {file}")).exit_code != 0
    with pytest.raises(WorldStartFailed, match="no-such-tool"):
        await namespaces.materialise(base, replace(spec, visible=(tmp_path / "no-such-tool",)))


async def test_a_resolved_path_does_not_name_the_real_workspace(world: World) -> None:
    assert not world.path.resolve().exists()


async def test_a_seal_while_the_host_holds_a_file_open_is_correct(
    world: World, namespaces: NamespaceBackend, spec: WorldSpec, out: Out
) -> None:
    with (world.path / "held.txt").open("w") as held:
        held.write("before\n")
        held.flush()
        first = await world.seal()
        held.write("after\n")
    second = await world.seal()
    assert [await out(await namespaces.materialise(s, spec), "cat held.txt") for s in (first, second)] == [
        "before\n",
        "before\nafter\n",
    ]


async def test_a_seal_that_the_store_refuses_leaves_the_world_as_it_was(
    world: World, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    def refuse(*_: object, **__: object) -> Snapshot:
        raise OSError(28, "No space left on device")

    await out(world, "cd package; echo precious > precious; rm code.py")
    with monkeypatch.context() as patched:
        patched.setattr(SnapshotStore, "seal_upper", refuse)
        with pytest.raises(SealFailed, match="No space left"):
            await world.seal()
    assert await out(world, "ls; cat precious") == "inner\nprecious\nprecious\n"
    sealed = await world.seal()
    assert "package/precious" in store.entries(sealed)


async def test_a_long_stack_still_mounts(
    namespaces: NamespaceBackend, world: World, spec: WorldSpec, out: Out
) -> None:
    for turn in range(60):
        await out(world, f"echo {turn} > f{turn % 7}; rm -rf f{(turn + 3) % 7}")
        await world.seal()
    fork = await namespaces.materialise(world.snapshot, spec)
    assert await out(fork, "ls; cat f*") == await out(world, "ls; cat f*")


async def test_a_dead_world_raises_world_died(
    world: World, namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    assert (await world.run("true")).ok
    agent = world._link.pid  # type: ignore[attr-defined]
    running = asyncio.create_task(world.run("sleep 1000"))
    await asyncio.sleep(0.1)
    os.kill(agent, signal.SIGKILL)
    with pytest.raises(WorldDied, match="SIGKILL"):
        await running
    with pytest.raises(WorldDied):
        await world.run("true")
    await world.rollback(base)
    assert (await world.run("true")).ok


async def test_a_dead_helper_is_an_error_and_not_a_hang(
    world: World, namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    await world.run("true")  # now it has its agent: otherwise its start would fail
    assert namespaces._helper is not None
    assert namespaces._helper._process is not None
    namespaces._helper._process.kill()
    with pytest.raises(WorldDied):
        await world.run("sleep 1000")
    with pytest.raises(WorldStartFailed, match="helper process"):
        await namespaces.materialise(base, spec)


async def test_a_helper_that_can_start_no_agent_is_an_error_and_not_a_hang(
    world: World, namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    await world.run("true")  # the helper is in its namespace
    assert namespaces._helper is not None
    assert namespaces._helper._process is not None
    helper = namespaces._helper._process.pid
    if os.geteuid() == 0:  # no limit applies to root's processes: agents get no namespace instead
        none = "echo 0 > /proc/sys/user/max_pid_namespaces"
        command = ["nsenter", "--user", "--preserve-credentials", "-t", str(helper), "sh", "-c", none]
        await asyncio.to_thread(subprocess.run, command, check=True)
    else:
        resource.prlimit(helper, resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    worlds = await namespaces.fork(base, spec, 4)
    ran = await asyncio.gather(*(world.run("true") for world in worlds), return_exceptions=True)
    failed = [str(one) for one in ran if isinstance(one, WorldStartFailed)]
    assert failed
    why = "No space left" if os.geteuid() == 0 else "temporarily unavailable"
    assert all(why in told for told in failed), failed  # whether the error came before we asked, or after
    await asyncio.gather(*(world.close() for world in worlds))


LATECOMER = """
import asyncio, sys
from pathlib import Path
from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.host.fork_server_client import SPARES
from ramify.sandboxes.linux import kernel
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.linux.processes import descendants

def mounts(pid):
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:  # it has ended since it was listed, or is ending: what makes a spare is short-lived
        return ""

async def main(root):
    for name in ("tree", "shown"):
        (root / name).mkdir()
    store = SnapshotStore(root / "store")
    base = store.import_tree(root / "tree").snapshot
    async with NamespaceBackend(store, root / "worlds") as backend:
        helper = backend._helper._process.pid
        while sum("/root/run " in mounts(p.pid) for p in descendants(helper)) < SPARES:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # the spares have made their views and wait
        for place in ("/mnt", root / "shown"):
            kernel.mount("none", str(place), "tmpfs")
            Path(place, "late").write_text("there\\n")
        world = await backend.materialise(base, WorldSpec(mount_at=root / "tree", visible=(root / "shown",)))
        done = await world.run(f"cat /mnt/late {root}/shown/late; touch /mnt/x; ls /tmp")
        print(done.stdout, done.stderr)

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting is root's")
def test_mounts_made_by_the_host_after_a_spare_started_are_visible(tmp_path: Path) -> None:
    shared = ["unshare", "--mount", "--propagation", "shared"]
    done = subprocess.run([*shared, sys.executable, "-c", LATECOMER, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.startswith("there\nthere\n"), done
    assert "Read-only" in done.stdout


OWNER = """
import asyncio, os, sys
from pathlib import Path
from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend

async def main(root):
    (root / "tree").mkdir()
    store = SnapshotStore(root / "store")
    base = store.import_tree(root / "tree").snapshot
    async with NamespaceBackend(store, root / "worlds") as backend:
        worlds = [await backend.materialise(base, WorldSpec(mount_at=root / "tree")) for _ in range(3)]
        for world in worlds:
            await world.run("setsid sleep 1000 & touch file")
        running = asyncio.create_task(worlds[0].run("trap '' TERM HUP; sleep 1000"))
        await asyncio.sleep(0.1)
        print("ready", flush=True)
        await running

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_killed_owner_takes_its_worlds_along(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner, owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        family = processes.descendants(owner.pid)
        assert len(family) >= 10
        owner.kill()
    deadline = time.monotonic() + 60
    while any(process.key in {p.key for p in processes.all_processes().values()} for process in family):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.02)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    store = SnapshotStore(tmp_path / "store")
    assert len(list((tmp_path / "worlds").iterdir())) == 2

    async def next_owner() -> None:
        async with NamespaceBackend(store, tmp_path / "worlds"):
            assert len(list((tmp_path / "worlds").iterdir())) == 2  # its own folder and lock

    asyncio.run(next_owner())
    assert list((tmp_path / "worlds").iterdir()) == []


async def test_writes_through_a_mapping_are_in_the_seal(
    namespaces: NamespaceBackend, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    """Such writes do not change the time: the file looks as at the last seal, but differs."""
    world = await namespaces.materialise(base, spec)
    repl = await world.python()
    await repl.run("import mmap, os; open('mapped', 'wb').write(bytes(8192)); file = open('mapped', 'r+b')")
    await repl.run("mapping = mmap.mmap(file.fileno(), 8192); mapping[0] = 1")
    for value in (2, 3):
        await asyncio.sleep(0.06)  # old enough to be trusted
        sealed = await world.seal()
        assert store.read(sealed, "mapped")[0] == value - 1
        await repl.run(f"mapping[0] = {value}")


async def test_seals_beside_living_processes_cost_only_the_changes(
    namespaces: NamespaceBackend, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    await world.run("sleep 1000 & head -c 300000 /dev/zero > large; echo x > $HOME/beside")
    first = await world.seal()
    assert store.layer_bytes(first.layers[-1]) >= 300_000
    await world.run("echo small > small; rm $HOME/beside; echo y > $HOME/other")
    second = await world.seal()
    assert store.layer_bytes(second.layers[-1]) == 6
    fork = await namespaces.materialise(second, spec)
    assert (await fork.run("wc -c < large; cat small; ls $HOME | grep -E 'beside|other'")).stdout == (
        "300000\nsmall\nother\n"
    )


async def test_running_out_of_open_files_is_a_clear_error(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    assert await out(world, "echo well") == "well\n"
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    begun: list[World] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 6, most))
    try:
        for _ in range(30):
            begun.append(await namespaces.materialise(base, spec))
            await begun[-1].run("true")
        pytest.fail("thirty worlds took six descriptors")
    except SandboxError as error:
        assert "ulimit -n" in str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
    await asyncio.gather(*(one.close() for one in begun))
    assert await out(await namespaces.materialise(base, spec), "echo well") == await out(world, "echo well")


@pytest.mark.parametrize(("number", "mend"), [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max")])
def test_the_error_names_whose_limit_of_open_files_it_is(number: int, mend: str) -> None:
    with pytest.raises(SandboxError, match=mend), explain_file_limit(SandboxError):
        raise OSError(number, os.strerror(number))


async def test_a_workspace_whose_name_is_not_utf8(
    namespaces: NamespaceBackend, store: SnapshotStore, spec: WorldSpec, tmp_path: Path, out: Out
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff:,\\"))
    odd.mkdir()
    (odd / "file").write_text("there\n")
    base = store.import_tree(odd).snapshot
    world = await namespaces.materialise(base, replace(spec, mount_at=odd))
    result = await world.run("pwd; cat file")
    assert result.stdout_bytes == os.fsencode(odd) + b"\nthere\n"
