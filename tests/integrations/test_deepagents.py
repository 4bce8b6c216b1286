"""deepagents' file tools and its agent on a world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("deepagents", reason="needs deepagents: pip install 'ramify[deepagents]'")

from ramify.integrations.deepagents import WorldBackend
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.world import World


@pytest.fixture
def backend(repo: Path, sandbox: str, tmp_path: Path) -> Iterator[WorldBackend]:
    with SyncWorld.create(repo, sandbox=sandbox, home=tmp_path / "home") as world:
        yield WorldBackend(world)


def test_its_file_tools(backend: WorldBackend, repo: Path) -> None:
    assert [Path(one["path"]).name for one in backend.ls(str(repo)).entries or []] == ["main.py"]
    main = str(repo / "main.py")
    assert "hello" in (backend.read(main).file_data or {})["content"]
    assert backend.edit(main, "hello", "bye").error is None
    assert backend.write(str(repo / "deep" / "er.txt"), "text").error is None
    assert [one["path"] for one in backend.glob("**/*.txt", path=str(repo)).matches or []]
    assert [one["text"] for one in backend.grep("bye", path=str(repo)).matches or []] == ["print('bye')"]
    assert backend.execute("python3 main.py").output == "bye\n"
    assert (repo / "main.py").read_text() == "print('hello')\n"


def test_files_come_and_go_one_by_one(backend: WorldBackend, repo: Path) -> None:
    inside, outside = str(repo / "a" / "b.bin"), "/tmp/elsewhere/c.bin"
    sent = backend.upload_files([(inside, b"\0\xff"), (str(repo), b"no"), (outside, b"there")])
    assert [one.error for one in sent] == [None, "is_directory", None]
    got = backend.download_files([inside, "/nowhere", str(repo), outside])
    assert [one.content for one in got] == [b"\0\xff", None, None, b"there"]
    assert [one.error for one in got] == [None, "file_not_found", "is_directory", None]


def test_a_command_that_takes_too_long_is_stopped(backend: WorldBackend) -> None:
    for patience in (1, 15):
        told = backend.execute("echo begun; sleep 60", timeout=patience)
        if told.output.startswith("begun"):
            break  # else the machine was so busy that the command had not begun
    assert told.exit_code == 124 and told.output.startswith("begun\n") and f"stopped after {patience}" in told.output


def test_what_a_model_writes_and_no_world_can_do_is_told(backend: WorldBackend) -> None:
    told = backend.execute("echo a\0b")
    assert told.exit_code == 126 and "NUL" in told.output
    assert [one.error for one in backend.upload_files([("a\0b", b""), ("fine", b"")])] == ["invalid_path", None]
    assert [one.error for one in backend.download_files(["\ud800", "fine"])] == ["invalid_path", None]


def test_fork_and_restore(backend: WorldBackend) -> None:
    kept = backend.snapshot()
    (fork,) = backend.fork()
    fork.execute("rm main.py")
    backend.execute("echo more > more.txt")
    backend.restore(kept)
    assert (fork.execute("ls").output, backend.execute("ls").output) == ("", "main.py\n")
    assert isinstance(fork, WorldBackend) and fork.id
    fork.close()


async def test_its_asynchronous_methods_over_an_asynchronous_world(repo: Path, sandbox: str, tmp_path: Path) -> None:
    async with World.create(repo, sandbox=sandbox, home=tmp_path / "home") as world:
        backend = WorldBackend(world)
        assert (await backend.aexecute("python3 main.py")).output == "hello\n"
        assert (await backend.aread(str(repo / "main.py"))).error is None
        waiting = asyncio.create_task(backend.aexecute("echo begun > begun; sleep 61237"))
        await world.exec("while [ ! -e begun ]; do sleep 0.01; done")
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (await backend.aexecute("pgrep -f 'sleep 6123[7]'")).output == ""
        with pytest.raises(RuntimeError, match="aexecute"):
            backend.execute("true")  # it would wait for itself
