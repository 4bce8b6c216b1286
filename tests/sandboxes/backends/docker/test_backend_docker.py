"""What the docker backend promises beyond the contract: complete clean-up, any image, isolation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.docker.backend import DockerBackend
from ramify.sandboxes.backends.docker.engine import SCRATCH
from ramify.sandboxes.backends.docker.host_programs import HOST, RootFs
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import WorldDied, WorldStartFailed
from ramify.sandboxes.host.scratch import remove_tree

pytestmark = pytest.mark.docker

Out = Callable[[World, str], Awaitable[str]]
Containers = Callable[[], list[Any]]


@pytest.fixture
def containers(scratch: Path) -> Iterator[Containers]:
    """The engine's containers of this test's scratch folder, in any state."""
    from ramify.sandboxes.backends.docker.connection import connect

    client = connect()
    label = f"{SCRATCH}={scratch.resolve()}"
    yield lambda: list(client.containers.list(all=True, filters={"label": label}))
    client.close()


@pytest.fixture
async def docker(store: SnapshotStore, scratch: Path) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(store, scratch) as opened:
        yield opened


@pytest.fixture
async def world(docker: DockerBackend, base: Snapshot, spec: WorldSpec) -> World:
    return await docker.materialise(base, spec)


async def test_commands_do_not_reach_into_the_agent(world: World, out: Out) -> None:
    """Commands run as its user, with its capabilities, and the engine's own filter would let them trace each
    other."""
    trace = "import ctypes; print(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0))"  # PTRACE_ATTACH
    for attempt in (
        "cat /proc/1/mem",
        "cat /proc/1/maps",
        "readlink /proc/1/fd/0",
        "readlink /proc/1/exe",
        "cat /proc/1/environ",
    ):
        result = await world.run(attempt)
        assert (result.exit_code != 0, result.stdout) == (True, ""), attempt
    assert await out(world, f'python3 -c "{trace.format(pid=1)}"') == "-1\n"
    assert await out(world, f'sleep 9 & python3 -c "{trace.format(pid="$!")}"; kill -9 $!') == "0\n"


async def test_nothing_is_left_when_worlds_and_backend_close(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, containers: Containers, scratch: Path
) -> None:
    worlds = await docker.fork(base, spec, 3)
    assert len(containers()) == 3
    await worlds[0].close()
    assert len(containers()) == 2
    await docker.__aexit__(None, None, None)
    assert containers() == []
    assert list(scratch.iterdir()) == []


HOST_PROGRAM = """
import asyncio, sys
from pathlib import Path
from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.backends.docker.backend import DockerBackend

async def main(root, workspace):
    store = SnapshotStore(root / "store")
    base = store.import_tree(workspace).snapshot
    async with DockerBackend(store, root / "worlds") as backend:
        world = await backend.materialise(base, WorldSpec(mount_at=workspace))
        await world.run("(setsid sleep 600 &)")
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
"""


@pytest.mark.parametrize("gone", [False, True])
async def test_a_killed_host_takes_its_containers_with_it(
    store: SnapshotStore, scratch: Path, workspace: Path, containers: Containers, gone: bool
) -> None:
    """Even if its scratch folder is `gone` too: then the next session cleans up."""
    command = [sys.executable, "-c", HOST_PROGRAM, str(scratch.parent), str(workspace)]
    host = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert host.stdout is not None
    assert await host.stdout.readline() == b"up\n"
    assert [one.status for one in containers()] == ["running"]
    host.send_signal(signal.SIGKILL)
    await host.wait()
    deadline = time.monotonic() + 60
    while any(one.status == "running" for one in containers()):
        assert time.monotonic() < deadline, "the container outlives its host"
        await asyncio.sleep(0.1)
    if gone:
        remove_tree(scratch)
    async with DockerBackend(store, scratch.with_name("other") if gone else scratch):
        assert containers() == []
    assert gone or list(scratch.iterdir()) == []


async def test_a_cancelled_start_leaves_no_container(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, containers: Containers, scratch: Path
) -> None:
    await (await docker.materialise(base, spec)).close()  # the image is there, and the engine warm
    before = sorted(scratch.rglob("*"))
    for moment in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        starting = asyncio.ensure_future(docker.fork(base, spec, 2))
        await asyncio.sleep(moment)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            for world in await starting:  # the start was faster than the cancellation
                await world.close()
            raise asyncio.CancelledError
        assert containers() == []
        assert sorted(scratch.rglob("*")) == before


async def test_a_second_start_keeps_living_containers(
    world: World, store: SnapshotStore, scratch: Path, containers: Containers, out: Out
) -> None:
    async with DockerBackend(store, scratch):
        assert len(containers()) == 1
    assert await out(world, "echo alive") == "alive\n"


async def test_a_killed_container_is_a_dead_world_and_a_rollback_revives_it(
    world: World, base: Snapshot, containers: Containers, out: Out
) -> None:
    containers()[0].kill("SIGKILL")
    with pytest.raises(WorldDied, match="SIGKILL"):
        await world.run("true")
    await world.rollback(base)
    assert await out(world, "cat readme.txt") == "as it was\n"
    assert len(containers()) == 1


async def test_a_removed_container_is_a_dead_world(world: World, containers: Containers) -> None:
    containers()[0].remove(force=True)
    with pytest.raises(WorldDied, match="somebody removed"):
        await world.run("true")


async def test_the_engines_isolation_holds(world: World, tmp_path: Path, out: Out) -> None:
    (tmp_path / "secret").write_text("the host's\n")
    status = dict(line.split(":\t") for line in (await out(world, "cat /proc/self/status")).splitlines())
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert int(status["CapEff"], 16) & (1 << 21) == 0, "CAP_SYS_ADMIN"
    for attempt in (f"cat {tmp_path}/secret", "mount -t tmpfs none /mnt", "echo x > /ramify/python/bin/python3"):
        assert not (await world.run(attempt)).ok
    assert (await world.run("ls /sys/class/net")).stdout == "lo\n"


async def test_visible_folders_are_shown_and_cannot_be_changed(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path, out: Out
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("visible\n")
    world = await docker.materialise(base, replace(spec, visible=(shown, tmp_path / "missing")))
    assert await out(world, f"cat {shown}/file") == "visible\n"
    assert not (await world.run(f"echo x > {shown}/file")).ok
    assert (await world.seal()).id == base.id


async def test_an_image_of_the_engine_by_its_name(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    await docker.materialise(base, spec)  # the image exists from now on
    world = await docker.materialise(base, replace(spec, image=Path(f"{HOST}:{RootFs.of_host().digest()[:24]}")))
    assert await out(world, "cat /etc/nsswitch.conf | head -1") == "passwd: files\n"


async def test_a_missing_image_is_named(docker: DockerBackend, base: Snapshot, spec: WorldSpec) -> None:
    with pytest.raises(WorldStartFailed, match=r"no/such:image is neither .*docker pull no/such:image"):
        await docker.materialise(base, replace(spec, image=Path("no/such:image")))


async def test_an_image_without_bash_is_refused(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path, containers: Containers
) -> None:
    (tmp_path / "bare" / "etc").mkdir(parents=True)
    for path in (tmp_path / "bare" / "etc", tmp_path / "bare"):
        os.utime(path, (0, 0))  # the same image, whenever this test runs
    with pytest.raises(WorldStartFailed, match="the image has no /bin/bash"):
        await docker.materialise(base, replace(spec, image=tmp_path / "bare"))
    assert containers() == []


async def test_an_invalid_tar_is_refused(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path
) -> None:
    (tmp_path / "image.tar").write_text("this is no tar")
    with pytest.raises(WorldStartFailed, match="the image cannot be used"):
        await docker.materialise(base, replace(spec, image=tmp_path / "image.tar"))


async def test_every_kind_of_change_beside_the_workspace_is_kept(
    world: World, docker: DockerBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    program = """
        mkdir -p ~/a/b; echo deep > ~/a/b/file; ln -s a/b/file ~/link; chmod 700 ~/a; mkfifo ~/pipe
        touch -d 2001-02-03 ~/a/b/file; printf '\\xff' > ~/binary; chmod 4755 ~/binary
        """
    if os.geteuid() == 0:
        program += "\nrm /etc/group; rm -r /home; mkdir /home; echo x > /home/new; echo more >> /etc/passwd"
    await out(world, textwrap.dedent(program))
    look = "(cd ~; ls -lR --time-style=full-iso . /etc/passwd /home | grep -v ^total); cat ~/link; ls /etc | grep gro"
    seen = (await world.run(look)).stdout
    first = await world.seal()
    assert (await world.seal()) is first
    fork = await docker.materialise(first, spec)
    assert (await fork.run(look)).stdout == seen
    assert (await fork.seal()).id == first.id
    await out(fork, "rm -r ~/a ~/link ~/pipe ~/binary; cd /")
    await world.rollback(base)
    assert len((await world.seal()).outside) == 0
    second = await fork.seal()
    third = await docker.materialise(second, spec)
    assert (await third.run("ls ~/a ~/link ~/pipe ~/binary")).stdout == ""


async def test_a_scratch_folder_with_a_path_longer_than_a_socket_address(
    store: SnapshotStore, tmp_path: Path, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    async with DockerBackend(store, tmp_path / ("d" * 100) / ("e" * 100)) as backend:
        assert await out(await backend.materialise(base, spec), "echo works") == "works\n"


async def test_a_root_file_system_of_this_machine_works_by_itself(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path, out: Out
) -> None:
    tar = tmp_path / "root.tar"
    with tar.open("wb") as file:
        RootFs.of_host(texts={"etc/mark": "mine\n"}).write(file)
    with tarfile.open(tar) as read:
        assert {member.uid for member in read} == {0}
    world = await docker.materialise(base, replace(spec, image=tar, env={}))
    program = "import ssl, sqlite3, json; print(json.dumps(1))"
    assert await out(world, f'cat /etc/mark; python3 -c "{program}"; ls / | head -1') == "mine\n1\nbin\n"
