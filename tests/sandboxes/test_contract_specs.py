"""What every backend with real commands must do with the requests of a `WorldSpec`, as its flags promise."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.docker.host_programs import RootFs
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import MIB, Backend, Limit, Limits, World, WorldSpec

SHELLS_ONLY = True
PATIENCE = 30.0  # seconds for a command that a limit should end: if none does, the test fails instead of hanging

Out = Callable[[World, str], Awaitable[str]]

HOG = "x=$(head -c 400M /dev/zero | tr '\\0' x); echo survived"
BOMB = "for i in $(seq 400); do sleep 20 & done; sleep 20"


@pytest.mark.parametrize(
    ("feature", "limits", "command", "limit"),
    [
        (Feature.MEMORY_LIMIT, Limits(memory_bytes=150 * MIB), HOG, Limit.MEMORY),
        (Feature.PROCESS_LIMIT, Limits(processes=60), BOMB, Limit.PROCESSES),
        (Feature.FILE_LIMIT, Limits(file_bytes=MIB), "head -c 4M /dev/zero > big", Limit.FILE),
        (Feature.CPU_LIMIT, Limits(cpu_s=1), "while :; do :; done", Limit.CPU),
        (Feature.DISK_LIMIT, Limits(disk_bytes=20 * MIB), "head -c 80M /dev/zero > big; sleep 20", Limit.DISK),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Feature) else "",
)
async def test_a_limit_ends_the_command_and_not_the_world(
    backend: Backend,
    base: Snapshot,
    spec: WorldSpec,
    out: Out,
    feature: Feature,
    limits: Limits,
    command: str,
    limit: Limit,
) -> None:
    if not backend.capabilities.can(feature):
        pytest.skip(f"{backend.name} refuses it: {backend.capabilities.why_not(feature)}")
    world = await backend.materialise(base, replace(spec, limits=limits))
    result = await world.run(f"({command})", timeout=PATIENCE)
    assert not result.timed_out
    assert not result.ok
    assert result.limit is limit
    assert await out(world, "cat readme.txt") == "as it was\n"


async def test_open_files_are_limited(backend: Backend, base: Snapshot, spec: WorldSpec, out: Out) -> None:
    if not backend.capabilities.can(Feature.OPEN_FILES_LIMIT):
        pytest.skip(f"{backend.name} refuses it: {backend.capabilities.why_not(Feature.OPEN_FILES_LIMIT)}")
    world = await backend.materialise(base, replace(spec, limits=Limits(open_files=200)))
    assert await out(world, "ulimit -n") == "200\n"
    assert not (await world.run("ulimit -n 400")).ok


async def test_a_world_without_limits_has_none(backend: Backend, base: Snapshot, spec: WorldSpec, out: Out) -> None:
    none = Limits(*[None] * 6)
    world = await backend.materialise(base, replace(spec, limits=none))
    assert await out(world, "ulimit -f; ulimit -t") == "unlimited\nunlimited\n"


@pytest.fixture
def server() -> Callable[[], int]:
    """A server on the host that says hello; its port."""
    sockets: list[socket.socket] = []

    def serve() -> int:
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)

        def answer() -> None:
            with listening, listening.accept()[0] as visitor:
                visitor.sendall(b"hello\n")

        threading.Thread(target=answer, daemon=True).start()
        return int(listening.getsockname()[1])

    return serve


async def test_the_network_is_available_only_on_request(
    backend: Backend, base: Snapshot, spec: WorldSpec, server: Callable[[], int]
) -> None:
    call = "exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3"
    able = backend.capabilities
    world = await backend.materialise(base, spec)
    port = server()
    reached = await world.run(call.format(port=port), timeout=PATIENCE)
    assert reached.ok is not able.can(Feature.NETWORK_ISOLATION)
    if able.can(Feature.HOST_NETWORK):
        world = await backend.materialise(base, replace(spec, network=True))
        port = server() if reached.ok else port
        assert (await world.run(call.format(port=port), timeout=PATIENCE)).stdout == "hello\n"
    elif not reached.ok:
        socket.create_connection(("127.0.0.1", port)).close()


async def test_loopback_is_always_available(backend: Backend, base: Snapshot, spec: WorldSpec, out: Out) -> None:
    world = await backend.materialise(base, spec)
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); print('connected')"
    )
    assert await out(world, f'python3 -c "{program}"') == "connected\n"


async def test_the_hosts_files_are_safe(backend: Backend, base: Snapshot, spec: WorldSpec, tmp_path: Path) -> None:
    outside = Path.home() / f".ramify-test-{tmp_path.name}"
    world = await backend.materialise(base, spec)
    try:
        result = await world.run(["sh", "-c", f"echo written > {outside}"])
        isolated = backend.capabilities.can(Feature.FILE_ISOLATION)
        assert outside.exists() is not isolated
        assert isolated or result.ok
    finally:
        outside.unlink(missing_ok=True)


async def test_changes_beside_the_workspace_are_kept_if_the_flag_says_so(
    backend: Backend, base: Snapshot, spec: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    world = await backend.materialise(base, spec)
    await out(world, 'mkdir -p ~/cache && echo kept > ~/cache/file && echo kept > "${TMPDIR:-/tmp}/file"')
    sealed = await world.seal()
    look = 'cat ~/cache/file "${TMPDIR:-/tmp}/file" 2>/dev/null'
    (fork,) = await backend.fork(sealed, spec, 1)
    if not backend.capabilities.can(Feature.OUTSIDE):
        assert sealed.outside == ()
        assert (await fork.run(look)).stdout == ""
        return
    assert await out(fork, look) == "kept\nkept\n"
    await out(fork, 'rm -r ~/cache; echo other > "${TMPDIR:-/tmp}/file"')
    assert await out(world, look) == "kept\nkept\n"
    removed = await fork.seal()
    assert (await (await backend.materialise(removed, spec)).run(look)).stdout == "other\n"
    await world.rollback(base)
    assert (await world.run(look)).stdout == ""


@pytest.fixture(scope="session")
def image_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root file system from this machine's bash, with a marker file."""
    tar = tmp_path_factory.mktemp("image") / "root.tar"
    with tar.open("wb") as out:
        RootFs.of_host(python=False, texts={"etc/mark": "of the image\n"}).write(out)
    return tar


async def test_a_world_stands_on_an_image(
    backend: Backend, workspace: Path, store: SnapshotStore, spec: WorldSpec, image_tar: Path, out: Out
) -> None:
    if not backend.capabilities.can(Feature.IMAGES):
        pytest.skip(f"{backend.name} refuses it: {backend.capabilities.why_not(Feature.IMAGES)}")
    base = store.import_tree(workspace, image=store.import_image(image_tar)).snapshot
    spec = replace(spec, image=image_tar, env={"PATH": "/usr/bin:/bin"})
    world = await backend.materialise(base, spec)
    assert await out(world, "cat /etc/mark readme.txt") == "of the image\nas it was\n"
    assert not Path("/etc/mark").exists()
    if shutil.which("git"):
        assert not (await world.run("command -v git")).ok
    await out(world, "echo changed > readme.txt")
    sealed = await world.seal()
    assert sealed.image == base.image
    fork, other = await backend.fork(sealed, spec, 2)
    told = await asyncio.gather(*(out(one, "cat /etc/mark readme.txt") for one in (fork, other)))
    assert told == ["of the image\nchanged\n"] * 2


async def test_startup_commands_run_in_every_world(
    backend: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    if not backend.capabilities.can(Feature.COMMANDS):
        pytest.skip(f"{backend.name} refuses it: {backend.capabilities.why_not(Feature.COMMANDS)}")
    spec = replace(spec, startup=("while :; do echo beat >> heart; sleep 0.02; done",))
    world = await backend.materialise(base, spec)
    await out(world, "until [ -s heart ]; do sleep 0.01; done")
    sealed = await world.seal()
    assert sealed.tier is ProcessTier.COMMANDS
    assert sealed.processes.commands == spec.startup
    (fork,) = await backend.fork(sealed, spec, 1)
    await out(fork, "before=$(wc -l < heart); until [ $(wc -l < heart) -gt $before ]; do sleep 0.01; done")
    await fork.rollback(base)
    await out(fork, "until [ -s heart ]; do sleep 0.01; done")
