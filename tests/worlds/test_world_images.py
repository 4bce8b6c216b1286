"""Worlds over OCI images: their layers, variables and directories; forks, snapshots and names."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramify import World
from ramify.images.errors import ImageNotFound
from ramify.sandboxes.backends.docker import RootFs
from ramify.sandboxes.errors import Unsupported, WorldStartFailed
from ramify.worlds.errors import WorldError
from ramify.worlds.home import WorldHome
from tests.images.image_builder import BuiltImage, layer_tar, write_layout
from tests.machine import why_no_namespaces

SETTINGS = {"Env": ["PATH=/usr/bin:/bin:/opt/bin", "GREETING=hello"], "WorkingDir": "/app"}


@pytest.fixture(scope="module")
def root_tar() -> bytes:
    """This machine's bash and a few programs, as the lowest layer."""
    made = io.BytesIO()
    RootFs.of_host(python=False).write(made)
    return made.getvalue()


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory, root_tar: bytes) -> Path:
    upper = layer_tar(
        {"app": None, "app/main": "one\n", "etc/os": "two\n", "opt/bin/tool": "#!/bin/bash\necho tool\n"}
    )
    image = BuiltImage([root_tar, upper], SETTINGS, compress=bytes)
    return write_layout(tmp_path_factory.mktemp("images") / "layout", image)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[WorldHome]:
    if why := why_no_namespaces():
        pytest.skip(why)
    async with WorldHome(tmp_path / "home", "namespaces") as opened:
        yield opened


pytestmark = pytest.mark.linux_ns

TELL = "echo $GREETING $MORE $PATH $PWD"


async def everywhere(world: World, command: str, *, shell: bool = True) -> set[str]:
    """The output of a command in a process, in a terminal, and in shells."""
    told = {(await world.exec(command)).stdout, (await world.shell("other").run(command)).stdout}
    async with world.pty(command) as terminal:
        shown = b""
        while data := await terminal.read():
            shown += data
    told.add(shown.decode().replace("\r\n", "\n"))
    return told | {(await world.run(command)).stdout} if shell else told


async def test_a_world_over_an_image_has_its_files_variables_and_directory(home: WorldHome, layout: Path) -> None:
    async with World.create(image=str(layout), home=home) as world:
        done = await world.exec("pwd; cat main /etc/os; echo $GREETING $PATH; tool", check=True)
        assert done.stdout.splitlines() == ["/app", "one", "two", "hello /usr/bin:/bin:/opt/bin", "tool"]
        assert (await world.run("pwd")).stdout == "/app\n"
        assert (await world.exec("pwd", cwd="/etc")).stdout == "/etc\n"
        await world.exec("echo changed >> main; rm /etc/os; export GREETING=no", check=True)
        for fork in await world.fork(2):
            async with fork:
                told = await fork.exec("cat main; ls /etc/os; echo $GREETING")
                assert told.stdout == "one\nchanged\nhello\n"


async def test_a_variable_goes_before_the_images(home: WorldHome, layout: Path) -> None:
    """In every kind of command, in forks, and when the world is opened again."""
    given = {"GREETING": "bye", "MORE": "more"}
    told = "bye more /usr/bin:/bin:/opt/bin /app\n"
    async with World.create(image=str(layout), name="one", home=home, env=given) as world:
        assert await everywhere(world, TELL) == {told}
        (fork,) = await world.fork()
        async with fork:
            assert await everywhere(fork, TELL) == {told}
        assert (await world.run(TELL, env={"GREETING": "call"})).stdout == told.replace("bye", "call")
        await world.run("export GREETING=own; unset MORE")
        state = await world.snapshot()
    async with World.open("one", home=home) as world:
        assert (await world.run(TELL)).stdout == told.replace("bye more", "own")
        assert await everywhere(world, TELL, shell=False) == {told}
    async with World.create(snapshot=state, home=home, env=given) as world:
        assert await everywhere(world, TELL) == {told}, "also before those that the shell of a snapshot has"


async def test_a_named_world_keeps_its_image(home: WorldHome, layout: Path) -> None:
    async with World.create(image=str(layout), name="one", home=home) as world:
        await world.exec("echo more > new")
    async with World.open("one", home=home) as world:
        assert (await world.exec("pwd; cat main new; echo $GREETING")).stdout == "/app\none\nmore\nhello\n"


async def test_a_folder_over_an_image(home: WorldHome, layout: Path, repo: Path) -> None:
    async with World.create(repo, image=str(layout), home=home, mount_at="/repo") as world:
        assert (await world.exec("pwd; cat README /app/main", check=True)).stdout == "/repo\none\ntwo\nthree\none\n"
        state = await world.snapshot()
        assert [change.path for change in await world.diff()] == []
    async with World.create(snapshot=state, image=str(layout), home=home, mount_at="/repo") as again:
        assert (await again.exec("cat README")).stdout == "one\ntwo\nthree\n"


async def test_forks_over_an_image_merge(home: WorldHome, layout: Path) -> None:
    async with World.create(image=str(layout), home=home) as world:
        one, two = await world.fork(2)
        async with one, two:
            await one.exec("echo 1 > /workspace/a; echo 1 > /app/one", check=True)
            await two.exec("echo 2 > /workspace/b; echo 2 > /app/two", check=True)
            await one.merge(two)
            assert (await one.exec("cat /workspace/a /workspace/b one two main")).stdout == "1\n2\n1\n2\none\n"


async def test_a_diff_over_an_image_has_changes_outside_the_workspace(home: WorldHome, layout: Path) -> None:
    async with World.create(image=str(layout), home=home) as world:
        assert await world.diff() == []
        start = await world.snapshot()
        await world.exec("echo 1 > /app/one; echo 2 >> main; echo 3 > /workspace/three", check=True)
        paths = [(change.kind.value, change.path) for change in await world.diff(start)]
        assert paths == [("added", "three"), ("modified", "/app/main"), ("added", "/app/one")]
        assert [(change.kind.value, change.path) for change in await world.diff()] == paths


async def test_an_image_that_is_here_is_found_by_name_and_id(home: WorldHome, layout: Path) -> None:
    image = await home.images.pull(str(layout))
    async with World.create(image=image.id[:19], home=home) as world:
        assert (await world.exec("cat main")).stdout == "one\n"
    with pytest.raises(ImageNotFound):
        await World.create(image="sha256:123456", home=home)


async def test_a_state_over_another_image_is_refused(
    home: WorldHome, layout: Path, tmp_path: Path, root_tar: bytes
) -> None:
    other = write_layout(tmp_path / "other", BuiltImage([layer_tar({"x": "1"}), root_tar], compress=bytes))
    async with World.create(image=str(layout), home=home) as world:
        state = await world.snapshot()
    with pytest.raises(WorldError, match="has another image"):
        await World.create(snapshot=state, image=str(other), home=home)
    await home.images.pull(str(other))
    async with World.create(home=home) as plain, World.create(image=str(layout), home=home, name="one") as world:
        await world.write("kept", "1")
        elsewhere = home.state_of(home.images.catalogue.get(f"oci:{other}"))
        for gone in (plain.restore(state), world.restore(elsewhere), world.restore(plain.state)):
            with pytest.raises(WorldError, match="has another image than this world"):
                await gone
        assert await world.read("kept") == b"1"
        await world.restore(state)


async def test_a_world_over_a_root_file_system_goes_back_to_a_state_that_does_not_name_it(
    home: WorldHome, root_tar: bytes, tmp_path: Path
) -> None:
    (tmp_path / "root.tar").write_bytes(root_tar)
    async with World.create(image=tmp_path / "root.tar", home=home) as world:
        before = world.state.id
        await world.exec("echo 1 > /etc/new", check=True)
        after = (await world.snapshot()).id
        assert home.resolve(before).image is None and home.resolve(after).image is not None
        await world.restore(before)
        assert not (await world.exec("cat /etc/new")).ok
        await world.restore(after)
        assert (await world.exec("cat /etc/new")).stdout == "1\n"


async def test_the_copy_backend_refuses_images(tmp_path: Path, layout: Any) -> None:
    with pytest.raises(Unsupported):
        await World.create(image=str(layout), home=tmp_path / "other", sandbox="copy")


async def test_the_images_user_is_the_user_inside(home: WorldHome, tmp_path: Path, root_tar: bytes) -> None:
    people = layer_tar({"etc/passwd": "me:x:1000:1001::/home/me:/bin/bash\n", "etc/group": "staff:x:50:\n", "f": "x"})
    for user, told in (("me", "1000 1001 /home/me"), ("7:staff", "7 50 /"), ("", "0 0 /root")):
        image = BuiltImage([root_tar, people], {"User": user}, compress=bytes)
        layout = write_layout(tmp_path / f"image{user}", image)
        async with World.create(image=str(layout), home=home) as world:
            owner = f"{told.split()[0]} {told.split()[1]}"
            done = await world.exec("echo $(id -u) $(id -g) $HOME; stat -c '%u %g' /f; echo more >> /f", check=True)
            assert done.stdout == f"{told}\n{owner}\n"
    layout = write_layout(tmp_path / "nobody", BuiltImage([root_tar, people], {"User": "missing"}, compress=bytes))
    with pytest.raises(WorldStartFailed, match="no user 'missing'"):
        async with World.create(image=str(layout), home=home) as world:
            await world.exec("true")


@pytest.mark.skipif(os.geteuid() == 0, reason="root has all users inside")
async def test_root_over_an_image_for_an_ordinary_user(home: WorldHome, layout: Path) -> None:
    async with World.create(image=str(layout), home=home) as world:
        done = await world.exec(
            "id -u; touch /f; chown 5:6 /f && stat -c %u:%g /f; cat /proc/self/uid_map", check=True
        )
        assert done.stdout.split() == ["0", "0:0", "0", str(os.geteuid()), "1"]
        async with (await world.fork())[0] as fork:
            assert (await fork.exec("echo more > /f; cat /f")).stdout == "more\n"
