"""The attacks of docs/security.md that the docker backend must withstand itself, in a container."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.shell import CONTROL
from ramify.sandboxes.backends.docker.backend import DockerBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.linux import processes
from tests.sandboxes.attack_helpers import PATIENCE, well

pytestmark = pytest.mark.docker

Out = Callable[[World, str], Awaitable[str]]


@pytest.fixture
async def docker(store: SnapshotStore, scratch: Path) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(store, scratch) as opened:
        yield opened


@pytest.fixture
async def world(docker: DockerBackend, base: Snapshot, spec: WorldSpec) -> World:
    return await docker.materialise(base, spec)


async def test_links_that_a_container_plants_lead_no_checkout_out(
    world: World, store: SnapshotStore, tmp_path: Path, out: Out
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious\n")
    await out(world, f"rm -r package; ln -s {precious} package; ln -s {precious}/file file")
    planted = await world.seal()
    await out(world, "rm package file; mkdir package; echo evil > package/file; echo evil > file")
    through = await world.seal()
    for snapshot in (planted, through):
        store.checkout(snapshot, tmp_path / "out", force=True)
    store.checkout(planted, tmp_path / "applied")
    store.checkout(through, tmp_path / "applied", only_changes_from=planted, force=True)
    assert [(path.name, path.read_text()) for path in precious.iterdir()] == [("file", "precious\n")]
    assert (tmp_path / "applied/package/file").read_text() == "evil\n"


async def test_a_setuid_file_of_a_container_gives_no_rights(
    world: World, store: SnapshotStore, scratch: Path, out: Out
) -> None:
    await out(world, "cp $(readlink -f /bin/sh) shell; chmod 6755 shell")
    assert "NoNewPrivs:\t1" in await out(world, "./shell -c 'cat /proc/self/status'")
    assert await out(world, "./shell -pc 'id -u'") == f"{os.geteuid()}\n"
    await world.seal()
    for top in (store.root, scratch):
        held = [path for path in top.rglob("shell") if path.is_file()]
        assert held
        for path in held:  # others on the host cannot reach it to run it
            above = [folder for folder in path.parents if folder.is_relative_to(top)]
            assert any(not folder.stat().st_mode & 0o077 for folder in above), path


async def test_no_device_of_a_container_can_be_used_or_kept(world: World, store: SnapshotStore, out: Out) -> None:
    """The device number 0/0 may be created, overlayfs's mark of a removed path; it never means more than that."""
    for place in (".", "/tmp", "/dev/shm"):
        for node in ("b 8 0", "c 1 1", "c 1 3", "c 0 0"):
            await world.run(f"mknod {place}/node {node}")
            assert not (await world.run(f"head -c 1 {place}/node")).ok, (place, node)
            await out(world, f"rm -f {place}/node")
    await world.run("rm readme.txt; mknod readme.txt c 0 0; mknod new c 0 0; mknod package/new c 0 0")
    kept = store.entries(await world.seal())
    assert not {"readme.txt", "new", "package/new"} & kept.keys()
    assert store.fsck().problems == ()


async def test_the_hosts_kernel_settings_are_out_of_a_containers_reach(world: World) -> None:
    core = Path("/proc/sys/kernel/core_pattern").read_text()
    for knob in (
        *("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/kcore"),
        *("/sys/kernel/uevent_helper", "/sys/power/state", "/proc/1/mem", "/proc/irq/default_smp_affinity"),
    ):
        assert not (await world.run(f"echo 1 > {knob}")).ok, knob
    assert Path("/proc/sys/kernel/core_pattern").read_text() == core
    calls = "l.mount(b'none', b'/mnt', b'tmpfs', 0, 0), l.unshare(0x10000000), l.chroot(b'/proc/1/root')"
    tried = await world.run(["python3", "-c", f"import ctypes; l = ctypes.CDLL(None); print({calls})"])
    assert tried.stdout == "-1 -1 -1\n"


async def test_no_core_of_a_container_is_piped_to_the_host(world: World, out: Out) -> None:
    """As for `limits.NO_CORE`: with a limit of 0 the kernel would pipe it anyway."""
    assert await out(world, "python3 -c 'import resource as r; print(r.getrlimit(r.RLIMIT_CORE))'") == "(1, 1)\n"


async def test_signals_to_a_containers_agent_do_nothing(world: World, out: Out) -> None:
    for number in ("KILL", "STOP", "TERM", "INT", "HUP", "SEGV", "CHLD", "USR1", "ALRM", "PIPE", "TSTP"):
        await world.run(f"kill -{number} 1; true", timeout=PATIENCE)
        assert await well(world), number
    await out(world, "export kept=1; sleep 99 &")
    await world.run("trap '' TERM; kill -TERM -1; kill -STOP -1; kill -9 -1", timeout=PATIENCE)
    assert await out(world, "echo $kept") == "1\n"


async def test_the_control_descriptor_in_a_container_may_be_closed(world: World) -> None:
    for attempt in (
        f"exec {CONTROL}>&-",
        'for fd in /proc/$$/fd/*; do eval "exec ${fd##*/}>&-"; done',
        "exec 0</dev/null",
        f"head -c 100M /dev/zero >&{CONTROL}",
    ):
        await world.run(attempt, timeout=2.0)
        await world.run("exit", timeout=PATIENCE)
        assert await well(world), attempt


async def test_an_escaped_grandchild_ends_with_its_container(world: World, out: Out) -> None:
    runaway = "setsid setsid bash -c 'trap \"\" TERM HUP; echo > ready; exec sleep 31415' >/dev/null 2>&1"
    await out(world, f"( {runaway} & ) & true")
    await out(world, "until [ -e ready ]; do sleep 0.01; done")
    mine = {p.key for p in processes.all_processes().values() if b"31415" in cmdline(p.pid)}
    assert mine and await world.background_processes() == 1
    await world.close()
    assert not mine & {process.key for process in processes.all_processes().values()}


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""
