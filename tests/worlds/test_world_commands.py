"""`World.exec`, `start`, `pty` and `expose`, and their blocking faces."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from ramify.sandboxes.errors import CommandRefused, UnknownUser
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.errors import CommandFailed, PortUnavailable
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.ports import free_port

PATIENCE_S = 60.0


async def lines() -> AsyncIterator[bytes]:
    for number in range(3):
        await asyncio.sleep(0)
        yield f"{number}\n".encode()


async def test_exec_takes_every_kind_of_input(home: WorldHome, repo: Path) -> None:
    big = b"0123456789" * 100_000
    async with World.create(repo, home=home) as world:
        assert (await world.exec("cat", stdin=big)).stdout_bytes == big
        assert (await world.exec("cat", stdin="text")).stdout == "text"
        assert (await world.exec("cat", stdin=lines())).stdout == "0\n1\n2\n"
        assert (await world.exec(["cat"], stdin=io.BytesIO(big))).stdout_bytes == big
        assert (await world.exec("head -c 3; exec <&-; sleep 0.1", stdin=big)).stdout == "012"  # it reads no further

        async def broken() -> AsyncIterator[bytes]:
            yield b"begun\n"
            raise LookupError("the caller's own")

        with pytest.raises(LookupError, match="own"):
            await world.exec("cat", stdin=broken())
        assert await world._live.background_processes() == 0


async def test_exec_bounds_what_it_keeps(home: WorldHome) -> None:
    async with World.create(home=home) as world:
        result = await world.exec("head -c 20000000 /dev/zero; echo end >&2")
        assert result.truncated and len(result.stdout_bytes) == 16 << 20 and result.stderr == "end\n"


async def test_exec_refuses_by_name(home: WorldHome) -> None:
    async with World.create(home=home) as world:
        with pytest.raises(UnknownUser, match="no user"):
            await world.exec("id", user="nobody-at-all")
        with pytest.raises(CommandRefused, match="not a folder"):
            await world.exec("id", cwd="missing")


async def test_a_cancelled_or_late_exec_leaves_no_process(home: WorldHome) -> None:
    async with World.create(home=home) as world:
        for patience in (0.3, 3.0, 30.0):
            late = await world.exec("sleep 1000 & setsid sleep 1000 & echo out; wait", timeout=patience)
            if late.stdout:
                break  # else the machine was so busy that the command had not begun
        assert (late.timed_out, late.exit_code, late.stdout) == (True, 124, "out\n")
        assert await world._live.background_processes() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await world.exec("sleep 1000 & setsid sleep 1000")
        assert await world._live.background_processes() == 0


async def test_a_long_command_blocks_no_other(home: WorldHome) -> None:
    async with World.create(home=home) as world, world.start("until [ -e go ]; do sleep 0.01; done") as long:
        shell = asyncio.ensure_future(world.run("until [ -e go ]; do sleep 0.01; done"))
        assert (await world.exec("echo meanwhile")).stdout == "meanwhile\n"
        assert long.returncode is None and not shell.done()
        await world.exec("touch go")
        assert await long.wait() == 0 and (await shell).ok


async def test_forks_while_a_command_runs(home: WorldHome) -> None:
    async with World.create(home=home) as world, world.start("touch a; echo ready; sleep 1000") as process:
        assert await process.stdout.read() == b"ready\n"
        (fork,) = await world.fork()
        assert (await fork.exec("ls")).stdout == "a\n"
        assert await fork._live.background_processes() == 0
        assert process.returncode is None
        await fork.close()


async def test_a_terminal(home: WorldHome) -> None:
    async with World.create(home=home) as world, world.pty("stty size; read x; echo got=$x", rows=11) as terminal:
        assert await terminal.read() == b"11 80\r\n"
        terminal.resize(12, 90)
        await terminal.write("typed\n")
        shown = b"".join([data async for data in terminal])
        assert b"got=typed" in shown and await terminal.wait() == 0


async def answered(url: str, transport: httpx.AsyncHTTPTransport | None = None) -> str:
    """What a server answers once it has started."""
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(trust_env=False, transport=transport) as client:
        while True:
            try:
                return (await client.get(f"{url}/page")).text
            except httpx.TransportError:
                await asyncio.sleep(0.05)


def server(port: int) -> list[str]:
    return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]


async def test_a_port_is_reached_from_outside(home: WorldHome, tmp_path: Path) -> None:
    """Of two forks that serve the same port, each answers at an address of its own."""
    port = free_port()
    async with World.create(home=home) as world:
        isolated = await world.exec("readlink /proc/self/ns/net")
        alone = isolated.stdout.strip() != str(Path("/proc/self/ns/net").readlink())
        forks = await world.fork(2 if alone else 1)  # without a network of their own they cannot serve one port
        for number, fork in enumerate(forks):
            await fork.write("page", f"page of {number}")
            path = tmp_path / f"{number}.sock"
            async with fork.start(server(port)), fork.expose(port) as exposed:
                assert exposed.host == "127.0.0.1" and exposed.port != port
                assert await answered(exposed.url) == f"page of {number}"
                async with fork.expose(port, unix_socket=path) as private:
                    assert path.stat().st_mode & 0o777 == 0o600
                    transport = httpx.AsyncHTTPTransport(uds=str(path))
                    assert await answered(private.url, transport=transport) == f"page of {number}"
                assert not path.exists()
        for fork in forks:
            await fork.close()


GREETING = """
import socket, time
server = socket.create_server(("127.0.0.1", {port}))
held = []
while True:
    held.append(server.accept()[0])
    held[-1].sendall(b"hello")
"""


async def test_a_fork_and_the_end_of_an_exposed_port_with_a_connection(home: WorldHome) -> None:
    """The connection goes on while the world is forked. Its end is no error in the log of the event loop."""
    port, logged = free_port(), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: logged.append(context))
    async with World.create(home=home) as world, world.start([sys.executable, "-c", GREETING.format(port=port)]):
        async with asyncio.timeout(PATIENCE_S), world.expose(port) as exposed:
            greeting = b""
            while not greeting:  # until the server has started
                reader, writer = await asyncio.open_connection(exposed.host, exposed.port)
                greeting = await reader.read(5)
                if not greeting:
                    writer.close()
                    await asyncio.sleep(0.05)
            (fork,) = await world.fork()
            assert (await fork.exec("echo forked")).stdout == "forked\n"
            await fork.close()
            assert not reader.at_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
    await asyncio.sleep(0)
    assert logged == []


async def test_a_port_that_is_taken_is_refused_by_name(home: WorldHome, tmp_path: Path) -> None:
    async with World.create(home=home) as world, world.expose(free_port()) as exposed:
        with pytest.raises(PortUnavailable, match="is taken"):
            async with world.expose(80, host_port=exposed.port):
                pass
        (tmp_path / "file").touch()
        with pytest.raises(PortUnavailable, match="is taken"):
            async with world.expose(80, unix_socket=tmp_path / "file"):
                pass
        with pytest.raises(PortUnavailable, match="cannot be listened on"):
            async with world.expose(80, unix_socket=tmp_path / "missing" / "file"):
                pass
        with pytest.raises(ValueError, match="not a port"):
            async with world.expose(0):
                pass
        reader, writer = await asyncio.open_connection(exposed.host, exposed.port)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""  # nothing listens inside
        writer.close()


async def test_named_shells_are_forked_with_their_world(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        one = world.shell("one")
        await one.run("cd src; export A=1", check=True)
        await world.shell("two").run("A=2", check=True)
        first, second = await world.fork(2)
        await first.shell("one").run("A=3; touch new", check=True)
        assert (await first.shell("one").run("echo $A; ls")).stdout.split() == ["3", "main.py", "new"]
        assert (await second.shell("one").run("echo $A; ls")).stdout.split() == ["1", "main.py"]
        assert (await second.shell("two").run(["printenv", "A"])).exit_code == 1
        await world.merge(first)
        assert (await one.run("echo $A; ls")).stdout.split() == ["3", "main.py", "new"]
        with pytest.raises(CommandFailed, match="exit code 1"):
            await one.run("false", check=True)
        for fork in (first, second):
            await fork.close()


async def test_named_shells_outlive_the_process_with_a_named_world(home: WorldHome) -> None:
    async with World.create(home=home, name="kept") as world:
        await world.shell("one").run("mkdir d; cd d; f() { echo f; }", check=True)
    async with World.open("kept", home=home) as again:
        assert (await again.shell("one").run("f; basename $PWD")).stdout == "f\nd\n"
        before = await again.snapshot()
        await again.shell("one").run("cd ..; unset -f f", check=True)
        await again.restore(before)
        assert (await again.shell("one").run("f")).stdout == "f\n"


def test_the_same_without_an_event_loop(tmp_path: Path, sandbox: str) -> None:
    with SyncWorld.create(home=tmp_path / "home", sandbox=sandbox) as world:
        assert world.exec("cat", stdin=io.BytesIO(b"file")).stdout == "file"
        with world.start("read x; echo got $x; echo err >&2; exit 3", stdin=True) as process:
            process.write_stdin("one\n")
            process.close_stdin()
            assert b"".join(process.stdout) == b"got one\n" and process.stderr.read() == b"err\n"
            assert process.wait() == process.returncode == 3
        with world.pty("read x; echo got=$x") as terminal:
            terminal.resize(30, 90)
            terminal.write("typed\n")
            assert b"got=typed" in b"".join(terminal)
        world.shell("one").run("A=1", check=True)
        assert world.shell("one").run("echo $A").stdout == "1\n"
        world.write("page", "the page")
        port = free_port()
        with world.start(server(port)), world.expose(port) as exposed:
            assert asyncio.run(answered(exposed.url)) == "the page"
