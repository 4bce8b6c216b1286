"""The attacks of docs/security.md that the docker backend must withstand itself, in a container."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.shell import CONTROL
from ramify.sandboxes.backends.docker.backend import DockerBackend
from ramify.sandboxes.backends.docker.engine import SCRATCH, Engine
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import SealFailed, WorldDied, WorldStartFailed
from ramify.sandboxes.linux import kernel, landlock, processes
from tests.sandboxes.attack_helpers import PATIENCE, well

pytestmark = pytest.mark.docker
ROOT = os.geteuid() == 0

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


# Seals: the host reads what commands can write


THREAD = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *work(void *arg) {
    for (;;) { FILE *f = fopen("/tmp/beats", "a"); if (f) { fputc('.', f); fclose(f); } usleep(2000); }
    return 0;
}
__attribute__((constructor)) static void begin(void) { pthread_t t; pthread_create(&t, 0, work, 0); }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
async def test_no_thread_of_the_shell_runs_while_its_world_is_sealed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    """bash loads libraries (`enable -f`), whose threads could put links where the host is about to read."""
    (tmp_path / "thread.c").write_text(THREAD)
    library = tmp_path / "thread.so"
    subprocess.run(  # noqa: ASYNC221
        ["cc", "-shared", "-fPIC", "-Wl,-z,nodelete", "-o", library, tmp_path / "thread.c", "-lpthread"], check=True
    )
    (world.path / "thread.so").write_bytes(library.read_bytes())
    await world.run("enable -f ./thread.so thread; until [ -s /tmp/beats ]; do sleep 0.01; done", timeout=PATIENCE)
    beats = Path(f"/proc/{first_process(world)}/root/tmp/beats")
    heard: list[int] = []
    execute = Engine.execute

    def slowly(engine: Engine, container: str, command: list[str]) -> None:
        for _ in range(2):
            heard.append(beats.stat().st_size)
            time.sleep(0.3)
        execute(engine, container, command)

    monkeypatch.setattr(Engine, "execute", slowly)
    await out(world, "echo changed > ~/file")
    await world.seal()
    assert len(heard) == 2 and heard[0] == heard[1]
    before = beats.stat().st_size
    await out(world, "sleep 0.3")
    assert beats.stat().st_size > before, "it goes on"


@pytest.mark.parametrize(
    "plant",
    ["ln -s {precious} /ramify/private/upper", "ln -s / /ramify/private/upper", "echo x > /ramify/private/upper",
     "mkfifo /ramify/private/upper", "mkdir -p /ramify/private/upper/deep; chmod 0 /ramify/private/upper",
     "ln -s {precious}/file /ramify/private/changes", "mkfifo /ramify/private/changes"],
)  # fmt: skip
async def test_what_commands_plant_in_the_agents_folder_misleads_no_seal(
    world: World, docker: DockerBackend, spec: WorldSpec, store: SnapshotStore, tmp_path: Path, plant: str, out: Out
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious\n")
    await out(world, f"echo mine > ~/kept; {plant.format(precious=precious)}")
    sealed = await world.seal()
    assert [(path.name, path.read_text()) for path in precious.iterdir()] == [("file", "precious\n")]
    assert await out(await docker.materialise(sealed, spec), "cat ~/kept; ls ~ | wc -l") == "mine\n1\n"
    assert store.fsck().problems == ()


async def test_planted_overlayfs_marks_outside_have_no_effect(
    world: World, docker: DockerBackend, spec: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    plant = (
        "import contextlib, os\n"
        "os.makedirs('/etc/made'); open('/etc/made/file', 'w').close(); open('/etc/file', 'w').close()\n"
        "for name, mark, value in (('/etc', 'opaque', b'y'), ('/etc/made', 'redirect', b'/usr'),\n"
        "        ('/etc/file', 'metacopy', b''), ('/etc/made/file', 'whiteout', b'y'), ('/usr', 'opaque', b'y')):\n"
        "    for space in ('user', 'trusted'):\n"
        "        with contextlib.suppress(OSError): os.setxattr(name, f'{space}.overlay.{mark}', value)\n"
        "        with contextlib.suppress(OSError): os.setxattr(name, f'{space}.overlay.overlay.{mark}', value)\n"
    )
    if os.geteuid() != 0:
        pytest.skip("only root writes there")
    assert (await world.run(["python3", "-c", plant])).ok
    look = "ls -R /etc; ls /usr"
    before = await out(world, look)
    sealed = await world.seal()
    child = await docker.materialise(sealed, spec)
    assert await out(child, look) == before
    assert (await child.seal()).id == sealed.id
    assert store.fsck().problems == ()


@pytest.mark.skipif(not ROOT, reason="only root gives files capabilities")
async def test_capabilities_of_files_stay_in_their_world(
    world: World, docker: DockerBackend, spec: WorldSpec, store: SnapshotStore, tmp_path: Path, out: Out
) -> None:
    give = "import os, struct; d = struct.pack('<5I', 0x02000001, 1 << 21, 0, 0, 0)\n"
    give += "for f in ('tool', '/etc/tool'): open(f, 'w').close(); os.setxattr(f, 'security.capability', d)"
    await out(world, f"python3 -c {shlex.quote(give)}")
    assert "security.capability" in os.listxattr(world.path / "tool")
    sealed = await world.seal()
    store.checkout(sealed, tmp_path / "out")
    for path in (tmp_path / "out" / "tool", *store.root.rglob("tool")):
        assert "security.capability" not in os.listxattr(path), path
    look = "import os; print(os.listxattr('tool'), os.listxattr('/etc/tool'))"
    assert await out(await docker.materialise(sealed, spec), f'python3 -c "{look}"') == "[] []\n"


async def test_huge_files_of_nothing_outside_take_no_disk(world: World, store: SnapshotStore, out: Out) -> None:
    await out(world, "truncate -s 3G ~/hole; printf end >> ~/hole")
    sealed = await world.seal()
    kept = [path.stat() for path in store.root.rglob("hole")]
    assert [one.st_size for one in kept] == [3 * 2**30 + 3] and kept[0].st_blocks * 512 < 2**20
    fork = world.path.parent.parent  # both copies of it
    assert sum(path.stat().st_blocks for path in fork.rglob("hole") if path.is_file()) * 512 < 2**21
    assert sealed.outside


@pytest.mark.parametrize(
    ("make", "named"),
    [
        ("import os\nfor _ in range(700): os.mkdir('d'); os.chdir('d')", "nested more than 400 deep"),
        ("import os\nfor _ in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)\n"
         "open('f', 'w').close()", "too long"),
        ("import os; open(b'\\xff' + b'name', 'w').close()", "not UTF-8"),
    ],
)  # fmt: skip
async def test_names_that_no_seal_can_keep_are_named(world: World, make: str, named: str, out: Out) -> None:
    await out(world, f"cd; python3 -c {shlex.quote(make)}")
    with pytest.raises(SealFailed) as refused:
        await world.seal()
    said = str(refused.value)
    assert named in said and "Traceback" not in said and len(said) < 2000
    assert await well(world)


async def test_odd_names_outside_are_kept(world: World, docker: DockerBackend, spec: WorldSpec, out: Out) -> None:
    names = ["a\nb", "\x1b[2Jx", "-rf", "ü\u202ex", "a\\b", '"', "%2e", " ", "{}", ".wh.gone", ".wh..wh..opq"]
    await out(
        world, f"mkdir ~/odd; cd ~/odd; python3 -c {shlex.quote(f'for n in {names!r}: open(n, chr(119)).write(n)')}"
    )
    list_all = "import os; print(ascii(sorted((n, open(n).read()) for n in os.listdir())))"
    look = f"cd ~/odd; python3 -c {shlex.quote(list_all)}"
    fork = await docker.materialise(await world.seal(), spec)
    assert await out(fork, look) == ascii(sorted((n, n) for n in names)) + "\n"


async def test_many_files_outside(world: World, docker: DockerBackend, spec: WorldSpec, out: Out) -> None:
    await out(world, "cd; mkdir d; cd d; seq 20000 | xargs touch")
    fork = await docker.materialise(await world.seal(), spec)
    assert await out(fork, "ls ~/d | wc -l") == "20000\n"


# What of the host is shown


async def test_what_is_mounted_below_a_shown_folder(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path, out: Out
) -> None:
    """Older engines would let it be written to, and the host's /proc show all."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    shown = tmp_path / "shown"
    (shown / "inner").mkdir(parents=True)
    (shown / "proc").mkdir()
    mounted: list[Path] = []
    try:
        for kind, place in (("tmpfs", shown / "inner"), ("proc", shown / "proc")):
            kernel.mount("none", str(place), kind)
            mounted.append(place)
        (shown / "inner" / "file").write_text("inner\n")
        world = await docker.materialise(base, replace(spec, visible=(shown,)))
        assert await out(world, f"cat {shown}/inner/file") == "inner\n"
        assert not (await world.run(f"echo evil > {shown}/inner/file")).ok
        assert await out(world, f"ls {shown}/proc | wc -l") == "0\n"
        await world.close()
    finally:
        for place in mounted:
            subprocess.run(["umount", place], check=True)  # noqa: ASYNC221


async def test_credentials_below_a_shown_folder_are_hidden(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder)
        monkeypatch.setenv("HOME", folder)
        for name in (".ssh/id", ".netrc", ".config/gh/hosts.yml", "plain"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(f"{name}\n")
        async with DockerBackend(store, scratch) as docker:
            world = await docker.materialise(base, replace(spec, visible=(home,)))
            look = f"cd {home}; cat plain .netrc; ls .ssh .config/gh | xargs"
            assert await out(world, look) == "plain\n.config/gh: .ssh:\n"


@pytest.mark.parametrize("place", ["/ramify", "/ramify/private", "/ramify/python/lib", "/x/../ramify/sandboxes"])
async def test_no_tree_stands_in_the_agents_place(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, place: str
) -> None:
    with pytest.raises(WorldStartFailed, match="holds the world's agent"):
        await docker.materialise(base, replace(spec, mount_at=Path(place)))


async def test_abstract_sockets_of_the_host(docker: DockerBackend, base: Snapshot, spec: WorldSpec) -> None:
    for network in (False, True):
        world = await docker.materialise(base, replace(spec, network=network))
        asked = await world.run(["python3", "-c", "import ctypes; print(ctypes.CDLL(None).syscall(444, 0, 0, 1))"])
        if network and int(asked.stdout) < landlock.ABI_SCOPES:
            pytest.skip("the engine's filter or the kernel lets nobody use Landlock's scopes")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("\0ramify-test-" + world.id)
            server.listen()
            text = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0ramify-test-{world.id}')"
            said = (await world.run(["python3", "-c", text])).stderr
            assert "PermissionError" in said if network else "ConnectionRefused" in said


# The engine goes away


class Relay:
    """A socket that leads to the engine until it is cut."""

    def __init__(self, place: Path, engine: str) -> None:
        self.place, self._engine = place, engine
        self._open: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(place))
        self._listening.listen(50)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                self._open += [client, engine]
                for one, other in ((client, engine), (engine, client)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        self.place.unlink()
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the SDK leaves sockets to be collected
async def test_an_engine_that_goes_away(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    """Commands go on. What needs the engine fails with a reason, closing does not, and the next session removes
    what is left."""
    from ramify.sandboxes.backends.docker.connection import DEFAULT_HOST, connect

    engine = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    with tempfile.TemporaryDirectory() as folder:
        relay = Relay(Path(folder, "docker.sock"), engine.removeprefix("unix://"))
        monkeypatch.setenv("DOCKER_HOST", f"unix://{relay.place}")
        async with DockerBackend(store, scratch) as docker:
            one, two = await docker.fork(base, spec, 2)
            await out(one, "touch ~/x")
            relay.cut()
            assert await out(one, "echo goes on") == "goes on\n"
            with pytest.raises(SealFailed, match="the Docker Engine failed at"):
                await one.seal()
            with pytest.raises(WorldStartFailed, match="the Docker Engine failed at"):
                await docker.materialise(base, spec)
            os.kill(first_process(two), signal.SIGKILL)
            with pytest.raises(WorldDied, match="why is not known"):
                await two.run("true")
            with pytest.raises(WorldStartFailed, match="the Docker Engine failed at"):
                await one.rollback(base)
        assert list(scratch.iterdir()) == []
    monkeypatch.setenv("DOCKER_HOST", engine)
    client = connect()
    mine = {"label": f"{SCRATCH}={scratch.resolve()}"}
    assert len(client.containers.list(all=True, filters=mine)) == 2
    async with DockerBackend(store, scratch):
        assert client.containers.list(all=True, filters=mine) == []
    client.close()
    gc.collect()


async def test_a_container_that_is_paused_blocks_nothing_for_ever(world: World, out: Out) -> None:
    from ramify.sandboxes.backends.docker.connection import connect

    client = connect()
    link = world._link  # type: ignore[attr-defined]
    client.api.pause(link.container)
    running = asyncio.ensure_future(world.run("true"))
    await asyncio.sleep(0.5)
    await asyncio.wait_for(world.close(), 60)
    with pytest.raises(WorldDied):
        await running
    client.close()


def first_process(world: World) -> int:
    link = world._link  # type: ignore[attr-defined]
    return int(link.pid)
