"""What cannot be done is refused by name, with nothing half made, and the world and its home go on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ramify.images.errors import BadReference
from ramify.sandboxes.contract import Limits
from ramify.sandboxes.errors import WorldStartFailed
from ramify.worlds import world_files
from ramify.worlds.errors import PathRefused, PortUnavailable
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.machine import why_no_namespaces

NAN: Any = float("nan")
COMMANDS: list[tuple[Any, Mapping[str, Any]]] = [
    ("true", {"timeout": "5"}),
    ("true", {"timeout": NAN}),
    ("true", {"cwd": "a\0b"}),
    ("true", {"env": {"A": 5}}),
    ("echo \0", {}),
    ([], {}),
    (["echo", 5], {}),
    (["echo", Path("x")], {}),
]


async def test_a_command_that_cannot_be_run_does_not_harm_its_world(home: WorldHome) -> None:
    async with World.create(home=home) as world:
        for command, options in COMMANDS:
            for run in (world.exec, world.run, world.shell("other").run):
                with pytest.raises((ValueError, TypeError)):
                    await run(command, **options)
        with pytest.raises(ValueError, match="first word"):
            await world.exec([""])
        wrong: Any = 5
        with pytest.raises(TypeError, match="stdin is to be of type bytes"):
            await world.run("cat", stdin=wrong)
        async with world.start("sleep 60") as process:
            with pytest.raises(TypeError, match="number is to be of type int"):
                process.send_signal(1.5)  # type: ignore[arg-type]
        for n, refused in ((1.5, TypeError), (-1, ValueError)):
            for fork in (world.fork, world.foresee_forks):
                with pytest.raises(refused):
                    await fork(n)  # type: ignore[operator]
        with pytest.raises(ValueError, match="nothing"):
            await world.merge(world, strategy="nothing")  # type: ignore[arg-type]
        for rows, columns in [(2.5, 80), (0, 1), (1, 1 << 16), ("a", 1)]:
            with pytest.raises(ValueError, match="terminal cannot have"):
                async with world.pty("true", rows=rows, columns=columns):  # type: ignore[arg-type]
                    pass
        for port in (0, 1 << 16, 80.5, "80"):
            with pytest.raises(ValueError, match="is not a port"):
                async with world.expose(port):  # type: ignore[arg-type]
                    pass
        assert (await world.run("echo lives")).stdout == "lives\n"
        assert (await world.exec("echo lives")).stdout == "lives\n"


@pytest.mark.parametrize("place", ["/tmp/a\0b", "/", "/proc/../dev/", "/sys", "relative"])
async def test_a_place_where_no_tree_can_stand_does_not_harm_the_home(
    home: WorldHome, place: str, sandbox: str
) -> None:
    if sandbox == "copy" and place == "relative":
        pytest.skip("the tree of the copy backend stands where it is")
    with pytest.raises(WorldStartFailed):
        await World.create(mount_at=place, home=home)
    async with World.create(home=home) as world:
        assert (await world.exec("true")).ok


@pytest.mark.linux_ns
@pytest.mark.parametrize(
    ("place", "said"),
    [("/run", "files of its own"), ("/bin", "name /usr/bin"), ("/usr", "bash"), ("/tmp/../usr/bin/", "bash")],
)
async def test_a_place_that_would_cover_what_the_world_needs_is_named(tmp_path: Path, place: str, said: str) -> None:
    if why := why_no_namespaces():
        pytest.skip(why)
    if os.path.realpath(shutil.which("bash") or "") != "/usr/bin/bash":
        pytest.skip("needs bash in /usr/bin")
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        with pytest.raises(WorldStartFailed, match=said) as raised:
            await World.create(mount_at=place, home=home, name="kept")
        assert "Errno" not in str(raised.value)
        assert not home.worlds()
        async with World.create(home=home, name="kept") as world:
            assert (await world.exec("true")).ok


@pytest.mark.linux_ns
async def test_a_tree_in_a_place_for_temporary_files_is_no_memory(tmp_path: Path) -> None:
    if why := why_no_namespaces():
        pytest.skip(why)
    limits = Limits(memory_bytes=256 << 20)
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        for place in ("/var/tmp", "/tmp"):
            async with World.create(mount_at=place, home=home, limits=limits) as world:
                done = await world.exec(["python3", "-c", "import time; time.sleep(.3); print(1)"])
                assert (done.stdout, done.exit_code) == ("1\n", 0), done


async def test_variables_and_limits_that_are_none(home: WorldHome) -> None:
    with pytest.raises(WorldStartFailed, match="no process can have the variable 'A'"):
        await World.create(env={"A": 5}, home=home)  # type: ignore[dict-item]
    limits: Sequence[Any] = (0, -1, 0.5, "1")
    for value in limits:
        with pytest.raises(ValueError, match=f"memory_bytes={value!r} is not a limit"):
            Limits(memory_bytes=value)


async def test_an_empty_name_is_no_image(home: WorldHome) -> None:
    """It was the folder where the process runs."""
    with pytest.raises(BadReference, match="'' names no image"):
        await World.create(image="", home=home)
    with pytest.raises(BadReference, match="lower-case"):  # not "pull it", which could not be done
        await World.create(image="Python:3.12", home=home)


async def test_a_socket_that_no_path_can_have(home: WorldHome, tmp_path: Path) -> None:
    async with World.create(home=home) as world:
        with pytest.raises(PortUnavailable, match="too long"):
            async with world.expose(8000, unix_socket=tmp_path / ("x" * 200)):
                pass


async def test_files_that_cannot_be_copied(
    home: WorldHome, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World.create(repo, home=home) as world:
        with pytest.raises(PathRefused, match="nothing-here: it does not exist"):
            await world.upload(tmp_path / "nothing-here")
        for refused in (world.read("a\0b"), world.write("a\0b", ""), world.read("\ud800")):
            with pytest.raises(PathRefused, match=r"NUL byte|surrogate"):
                await refused
        await world.write("src/deep/file", "")
        monkeypatch.setattr(world_files, "_DEEPEST", 1)
        with pytest.raises(PathRefused, match="src/deep: more than 1 folders"):
            await world.download(".", tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []
        monkeypatch.undo()
        await world.download(".", tmp_path / "out")
        assert (tmp_path / "out" / "src" / "deep" / "file").exists()


async def test_a_folder_that_the_user_may_not_enter_is_named(home: WorldHome) -> None:
    async with World.create(home=home) as world:
        await world.exec("mkdir closed; chmod 000 closed", check=True)
        result = await world.exec(["pwd"], cwd="closed")
        may_enter = (await world.exec("test -x closed/.")).ok  # root's rights
        assert result.ok if may_enter else result.exit_code == 126 and "Permission denied" in result.stderr
