"""Images of others: what their authors have set and put into them does not reach the agent, and nothing is lost
without a word."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.docker.backend import DockerBackend
from ramify.sandboxes.backends.docker.container_link import ContainerLink
from ramify.sandboxes.backends.docker.engine import PREFIX, SCRATCH, SESSION
from ramify.sandboxes.backends.docker.host_programs import RootFs, libraries
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed

pytestmark = pytest.mark.docker

Out = Callable[[World, str], Awaitable[str]]
Make = Callable[..., str]


@pytest.fixture
def client() -> Iterator[Any]:
    from ramify.sandboxes.backends.docker.connection import connect

    opened = connect()
    yield opened
    opened.close()


@pytest.fixture
def image(client: Any) -> Iterator[Make]:
    """Makes an image of this machine's programs, with a Dockerfile's instructions and these files; its name."""
    import docker.errors

    made: list[str] = []

    def make(*changes: str, files: dict[str, bytes] | None = None) -> str:
        tar = io.BytesIO()
        RootFs.of_host(python=False).write(tar)
        tar.seek(0)
        with tarfile.open(fileobj=tar, mode="a") as out:
            for name, content in (files or {}).items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755
                out.addfile(member, io.BytesIO(content))
        tar.seek(0)
        made.append(f"ramify-test/{uuid.uuid4().hex[:8]}:latest")
        repository, _, tag = made[-1].rpartition(":")
        client.api.import_image(src=tar, repository=repository, tag=tag, changes=list(changes))
        return made[-1]

    yield make
    for name in made:
        with suppress(docker.errors.NotFound):
            client.images.remove(name, force=True)


@pytest.fixture
async def docker(store: SnapshotStore, scratch: Path) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(store, scratch) as opened:
        yield opened


@pytest.fixture
async def world(docker: DockerBackend, base: Snapshot, spec: WorldSpec) -> World:
    return await docker.materialise(base, spec)


def first_process(world: World) -> int:
    link = world._link  # type: ignore[attr-defined]
    assert isinstance(link, ContainerLink) and link.pid
    return link.pid


async def test_settings_of_an_image_do_not_reach_the_agent(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, image: Make, out: Out
) -> None:
    name = image(
        "ENV LD_PRELOAD=/evil.so TOKEN=of-the-images-author PATH=/evil PYTHONHOME=/evil",
        'ENTRYPOINT ["/bin/false"]',
        "USER 12345",
        "WORKDIR /nowhere",
        "HEALTHCHECK --interval=1s CMD touch /healthy",
    )
    world = await docker.materialise(base, replace(spec, image=Path(name)))
    pid = first_process(world)
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    for named in (b"LD_PRELOAD", b"TOKEN", b"PYTHONHOME", b"/evil"):
        assert named not in environment
    assert await out(world, "env | grep -c -e TOKEN -e evil; id -u") == f"0\n{os.geteuid()}\n"
    assert await out(world, "sleep 2.5; ls / | grep -c healthy; true") == "0\n"
    assert await world.seal() is not None


async def test_no_library_of_an_image_is_loaded_into_the_agent(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, image: Make, out: Out
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    library = next(path for name, path in libraries([Path(bash)]).items() if name.startswith("libtinfo"))
    where = "etc/ld.so.preload", "ramify/no.preload", "ramify/python/non"
    named = {"evil.so": library.read_bytes(), **dict.fromkeys(where, b"/evil.so\n")}
    world = await docker.materialise(base, replace(spec, image=Path(image(files=named))))
    assert "/evil.so" not in Path(f"/proc/{first_process(world)}/maps").read_text()
    assert "/evil.so" in await out(world, "cat /proc/$$/maps"), "it would be loaded"


async def test_layers_of_an_image_are_not_applied(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, image: Make, out: Out
) -> None:
    """An image may have folders where a container sees the layers of its snapshot."""
    planted = image(
        files={f"ramify/outside/000000{spec.mount_at}/planted": b"x", "ramify/outside/x/srv/planted": b"x"}
    )
    world = await docker.materialise(base, replace(spec, image=Path(planted)))
    assert await out(world, "ls -A . /srv | grep -c planted; true") == "0\n"


async def test_packages_of_the_host_are_not_shown(world: World, out: Out) -> None:
    assert await out(world, "cat /ramify/python/lib/python*/os.py | grep -c ^def") != "0\n"
    assert await out(world, "ls -A /ramify/python/lib/python*/*-packages | grep -v : | xargs") == "\n"


async def test_an_image_with_volumes_is_refused(
    docker: DockerBackend, base: Snapshot, spec: WorldSpec, image: Make, out: Out
) -> None:
    with pytest.raises(WorldStartFailed, match=r"has volumes \(/data, /var/lib/db\): .*docker export"):
        await docker.materialise(base, replace(spec, image=Path(image("VOLUME /var/lib/db /data"))))
    own = image(f"VOLUME {spec.mount_at}")
    assert (
        await out(await docker.materialise(base, replace(spec, image=Path(own))), "cat readme.txt") == "as it was\n"
    )


async def test_a_container_of_the_user_with_our_labels_stays(
    client: Any, image: Make, store: SnapshotStore, scratch: Path
) -> None:
    """An image made of one of our containers hands its labels on."""
    name = image(f"LABEL {SCRATCH}=/nowhere {SESSION}=0123456789ab", f"LABEL other={SCRATCH}")
    theirs = client.containers.create(name, ["/bin/true"], network_mode="none")
    ours = client.containers.create(
        name, ["/bin/true"], name=f"{PREFIX}0123456789ab-{uuid.uuid4().hex[:12]}", network_mode="none"
    )
    try:
        for one in (theirs, ours):
            one.start()
            one.wait(timeout=60)
        async with DockerBackend(store, scratch):
            left = {one.id for one in client.containers.list(all=True)}
        assert theirs.id in left and ours.id not in left
    finally:
        theirs.remove(force=True)


async def test_an_image_that_was_removed_is_imported_again(
    client: Any, docker: DockerBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path, image: Make, out: Out
) -> None:
    root = tmp_path / "root.tar"
    with root.open("wb") as tar:
        RootFs.of_host(python=False, texts={"etc/mark": uuid.uuid4().hex}).write(tar)
    world = await docker.materialise(base, replace(spec, image=root))
    sealed = await world.seal()
    await world.close()
    assert sealed.image is not None
    client.images.remove(f"ramify/image:{sealed.image[:24]}", force=True)
    assert await out(await docker.materialise(base, replace(spec, image=root)), "echo works") == "works\n"
    named = image()
    await (await docker.materialise(base, replace(spec, image=Path(named)))).close()
    client.images.remove(named, force=True)
    with pytest.raises(WorldStartFailed, match="docker pull"):
        await docker.materialise(base, replace(spec, image=Path(named)))


async def test_names_that_are_no_images(docker: DockerBackend, base: Snapshot, spec: WorldSpec) -> None:
    for name in ("no\nimage", "../containers/x", "-it", "UPPER/case", "a b", "\x1b[2J", "x" * 5000):
        with pytest.raises(WorldStartFailed):
            await docker.materialise(base, replace(spec, image=Path(name)))
