"""Worlds over an image: their own root file system, from a folder or a tar, instead of the host's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import tarfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.backends.namespaces.home_overlay import HOSTS
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import SandboxError, WorldStartFailed
from ramify.sandboxes.linux import landlock

pytestmark = pytest.mark.linux_ns

Out = Callable[[World, str], Awaitable[str]]
PROGRAMS = ("bash", "cat", "ls", "mkdir", "rm", "touch", "env", "id", "sleep", "ln", "readlink")


@pytest.fixture
def root(tmp_path: Path, root_file_system: Callable[..., Path]) -> Path:
    root = root_file_system(tmp_path / "image", *PROGRAMS)
    (root / "opt" / "tool").mkdir(parents=True)
    (root / "opt" / "tool" / "version").write_text("1\n")
    return root


@pytest.fixture(params=["folder", "tar"])
def image(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> Path:
    if request.param == "folder":
        return root
    with tarfile.open(tmp_path / "image.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(root, ".")
    shutil.rmtree(root)
    return tmp_path / "image.tar.gz"


@pytest.fixture
def inside(spec: WorldSpec, image: Path) -> WorldSpec:
    return replace(spec, mount_at=Path("/work/space"), image=image, env={"PATH": "/usr/bin"})


async def test_the_root_is_the_images_own(
    namespaces: NamespaceBackend, base: Snapshot, inside: WorldSpec, out: Out
) -> None:
    world = await namespaces.materialise(base, inside)
    assert await out(world, "pwd; cat readme.txt /etc/os-release") == "/work/space\nas it was\nNAME=tiny\n"
    seen = set((await out(world, "ls /")).split())
    assert {"bin", "dev", "etc", "opt", "proc", "run", "tmp", "usr", "work"} <= seen
    assert (await world.run(f"ls {Path(__file__).parent}")).exit_code != 0
    assert await out(world, "echo x > /dev/null; id -u; echo $HOME") == "0\n/root\n"  # for every user of the host
    assert (await world.run("ls /etc/passwd")).exit_code != 0


async def test_the_hosts_network_does_not_include_its_abstract_sockets(
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    tmp_path: Path,
    root_file_system: Callable[..., Path],
) -> None:
    """The desktop's bus and X11 are such sockets."""
    if landlock.abi_version() < landlock.ABI_SCOPES:
        pytest.skip("this kernel's Landlock has no scopes (Linux 6.12)")
    python = Path(os.path.realpath(sys.executable))
    image = root_file_system(tmp_path / "image", "bash", beside=(python,))
    shown = (*spec.visible, Path(sys.prefix), Path(sys.base_prefix))
    inside = replace(spec, mount_at=Path("/work"), image=image, env={"PATH": "/usr/bin"}, network=True, visible=shown)
    world = await namespaces.materialise(base, inside)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0ramify-test-{world.id}")
        server.listen()
        text = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0ramify-test-{world.id}')"
        tried = await world.run([str(python), "-c", text])
        assert "PermissionError" in tried.stderr, tried.stderr


@pytest.mark.parametrize("place", ["proc", "dev", "work"])
@pytest.mark.parametrize("kind", ["link", "file"])
async def test_a_link_where_a_folder_has_to_be_is_named(
    place: str, kind: str, namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, root: Path
) -> None:
    """A link at /proc or /dev would be followed before the root is entered."""
    with contextlib.suppress(FileNotFoundError):
        (root / place).rmdir()
    if kind == "link":
        (root / place).symlink_to("/tmp")
    else:
        (root / place).write_text("")
    inside = replace(spec, mount_at=Path("/work"), image=root, env={"PATH": "/usr/bin"})
    with pytest.raises(WorldStartFailed, match=f"a link or a file is at /{place}, where"):
        await (await namespaces.materialise(base, inside)).run("true")


@pytest.mark.parametrize("own", [None, "", "10.0.0.1\tmine\n"], ids=["none", "empty", "its own"])
async def test_localhost_has_an_address_even_if_the_image_defines_none(
    own: str | None,
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    root: Path,
    out: Out,
) -> None:
    """`docker export` and debootstrap leave this file to the container's runtime."""
    if own is not None:
        (root / "etc" / "hosts").write_text(own)
    (root / "etc").chmod(0o751)
    inside = replace(spec, mount_at=Path("/work/space"), image=root, env={"PATH": "/usr/bin"})
    world = await namespaces.materialise(base, inside)
    assert await out(world, "cat /etc/hosts") == (own or HOSTS)
    assert await out(world, "ls -A /etc") == "hosts\nos-release\n"
    assert await world.seal() == world.snapshot
    await out(world, "echo more >> /etc/hosts")
    fork = await namespaces.materialise(await world.seal(), inside)
    assert await out(fork, "cat /etc/hosts") == (own or HOSTS) + "more\n"
    await out(fork, "rm /etc/hosts")
    assert (await fork.run("cat /etc/hosts")).exit_code != 0
    again = await namespaces.materialise(await fork.seal(), inside)
    assert (await again.run("grep more /etc/hosts")).exit_code != 0


async def test_changes_in_the_root_are_part_of_a_snapshot(
    namespaces: NamespaceBackend, base: Snapshot, inside: WorldSpec, image: Path, out: Out
) -> None:
    world = await namespaces.materialise(base, inside)
    await out(world, "echo 2 > /opt/tool/version; mkdir /opt/new; rm /etc/os-release; echo w > w; echo t > /tmp/t")
    sealed = await world.seal()
    assert sealed.image is not None
    again = await namespaces.materialise(sealed, inside)
    assert await out(again, "cat /opt/tool/version w /tmp/t; ls -A /etc /opt/new") == (
        "2\nw\nt\n/etc:\nhosts\n\n/opt/new:\n"
    )
    without = await namespaces.materialise(sealed, replace(inside, image=None))  # the snapshot names its image
    assert await out(without, "cat /opt/tool/version") == "2\n"
    await again.rollback(base)  # `base` names no image, like every imported tree
    assert await out(again, "cat /opt/tool/version /etc/os-release; ls /opt") == "1\nNAME=tiny\ntool\n"
    assert (await again.seal()).image == sealed.image
    fresh = await namespaces.materialise(base, inside)
    assert await out(fresh, "cat /opt/tool/version /etc/os-release; ls /opt") == "1\nNAME=tiny\ntool\n"


async def test_forks_of_an_imported_tree_are_merged_over_their_image(
    namespaces: NamespaceBackend, base: Snapshot, inside: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    one, two = await namespaces.fork(base, inside, 2)
    await out(one, "echo 2 > /opt/tool/version; rm /etc/os-release; echo 1 > one")
    await out(two, "echo n > /opt/new")
    merged = store.merge(base, await one.seal(), await two.seal())
    child = await namespaces.materialise(merged, inside)
    assert await out(child, "cat one /opt/tool/version /opt/new; ls -A /etc") == "1\n2\nn\nhosts\n"


async def test_the_root_can_be_changed_after_a_seal_of_the_tree_alone(
    namespaces: NamespaceBackend, base: Snapshot, inside: WorldSpec, image: Path, out: Out
) -> None:
    world = await namespaces.materialise(base, inside)
    await out(world, "echo w > w")
    assert not (await world.seal()).outside
    await asyncio.sleep(0.1)  # wait for the clean-up after a seal
    await out(world, "echo 2 >> /opt/tool/version; rm /etc/os-release")
    fork = await namespaces.materialise(await world.seal(), inside)
    assert await out(fork, "cat /opt/tool/version w; ls -A /etc") == "1\n2\nw\nhosts\n"


async def test_forks_of_one_image_see_nothing_of_each_other(
    namespaces: NamespaceBackend, base: Snapshot, inside: WorldSpec, out: Out
) -> None:
    one, two, three = await namespaces.fork(base, inside, 3)
    await out(one, "echo one > /opt/tool/version")
    await out(two, "rm -r /opt/tool")
    assert await out(three, "cat /opt/tool/version") == "1\n"
    assert await out(one, "cat /opt/tool/version") == "one\n"


async def test_an_image_without_a_shell_and_an_invalid_image_are_refused(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(WorldStartFailed, match="no bash"):
        await namespaces.materialise(base, replace(spec, image=tmp_path / "empty"))
    (tmp_path / "not.tar").write_text("no tar at all")
    with pytest.raises((WorldStartFailed, ForkEngineError), match=r"not\.tar"):
        await namespaces.materialise(base, replace(spec, image=tmp_path / "not.tar"))
    with pytest.raises((WorldStartFailed, ForkEngineError), match="missing"):
        await namespaces.materialise(base, replace(spec, image=tmp_path / "missing"))


@pytest.mark.parametrize("process", ["self", "1"])
async def test_a_program_in_bashs_place_is_never_the_hosts(
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    tmp_path: Path,
    store: SnapshotStore,
    process: str,
    root: Path,
) -> None:
    """The agent, which knows more paths, starts a new shell from a root that the world controls."""
    outside = tmp_path / "outside"
    shutil.copy(os.path.realpath("/bin/bash"), outside)
    up = os.path.relpath(outside, store.root)
    inside = replace(spec, mount_at=Path("/work/space"), image=root, env={"PATH": "/usr/bin"})
    world = await namespaces.materialise(base, inside)
    for number in range(3, 24):
        await world.run(f"ln -sfn /proc/{process}/fd/{number}/{up} /usr/bin/bash; exit 3")
        with contextlib.suppress(SandboxError):  # no shell at all only harms the world itself
            ran = await world.run("echo ran; readlink /proc/$$/exe")
            assert "outside" not in ran.stdout, number
        await world.rollback(world.snapshot)


async def test_an_image_that_no_snapshot_names_yet_is_not_collected_below_a_world(
    base: Snapshot, inside: WorldSpec, store: SnapshotStore, scratch: Path, out: Out
) -> None:
    """`ramify gc` runs in another process, and keeps what snapshots name. The world's own names no image."""
    async with NamespaceBackend(SnapshotStore(store.root), scratch) as backend:
        world = await backend.materialise(base, inside)
        before = await out(world, "ls /opt/tool /usr/bin")
        store.delete_unreachable([base.id])
        assert await out(world, "ls /opt/tool /usr/bin; touch /opt/new") == before
        sealed = await world.seal()
        assert "new" in await out(await backend.materialise(sealed, inside), "ls /opt")
