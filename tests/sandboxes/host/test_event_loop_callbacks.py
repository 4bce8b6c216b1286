"""Callbacks of the event loop must not raise: the loop only logs it, and the waiting callers would wait for ever.

So every fault in one fails the waiting calls, and closing still ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.framing import LENGTHS
from ramify.sandboxes.agent.messages import Thaw
from ramify.sandboxes.agent.mount_server import CloneMount, pack
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.errors import WorldDied, WorldStartFailed
from ramify.sandboxes.host.agent_link import AgentLink, MessageStream
from ramify.sandboxes.host.fork_server_client import AgentReports, ForkServerClient
from ramify.sandboxes.host.mount_server_client import MountServerClient


class Quiet:
    def last_words(self) -> str:
        return "nothing"


@pytest.fixture
async def faults() -> AsyncIterator[list[dict[str, Any]]]:
    """What the loop only logs; must be empty at the end."""
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    yield seen
    assert seen == []


def ended_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["true"])


def frame(head: bytes, body: bytes = b"") -> bytes:
    return LENGTHS.pack(len(head), len(body)) + head + body


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"not json"),
        frame(b'["NoSuchKind", {}, []]'),
        frame(b'["Done", {"surplus": 1}, []]'),
        frame(b"[]"),
        frame(b"\xff\xfe"),
    ],
)
async def test_an_unreadable_reply_fails_the_request(sent: bytes, faults: list[dict[str, Any]]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = await MessageStream.over(ours)
    link = AgentLink(Quiet(), asyncio.get_running_loop().create_future(), stream)
    first, second = [asyncio.ensure_future(link.ask(Thaw())) for _ in range(2)]
    await asyncio.sleep(0)
    with theirs:
        theirs.sendall(sent)
        for asked in (first, second):
            with pytest.raises(WorldDied, match="unreadable"):
                await asked
        with pytest.raises(WorldDied, match="unreadable"):
            await link.ask(Thaw())
        await stream.close()


@pytest.mark.parametrize("with_a_copy", [False, True])
async def test_closing_a_connection_is_seen_at_the_other_end(with_a_copy: bool) -> None:
    """Even if another process has a copy of our end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    copy = os.dup(ours.fileno()) if with_a_copy else None
    stream = await MessageStream.over(ours)
    await stream.close()
    with theirs:
        theirs.settimeout(60)
        assert theirs.recv(1) == b""
    if copy is not None:
        os.close(copy)


async def test_a_connection_whose_transport_the_loop_refuses_can_be_closed() -> None:
    """As asyncio does if `connection_made` raises: it logs that, and calls nothing more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = MessageStream(ours)
        with pytest.raises(ConnectionResetError):
            stream.ask(Thaw(), asyncio.get_running_loop().create_future())
        stream.send(Thaw())  # type: ignore[arg-type]
        await stream.close()


@pytest.mark.parametrize("report", [b"nonsense", b"born 77 1", b"dead x 1", b"born 0 x"])
async def test_an_unreadable_report_fails_the_wait_for_its_agent(
    report: bytes, tmp_path: Path, faults: list[dict[str, Any]]
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    helper, loop = ForkServerClient(tmp_path / "log"), asyncio.get_running_loop()
    helper._control, helper._process = ours, ended_process()
    child = helper._children[0] = AgentReports(loop.create_future(), loop.create_future())
    loop.add_reader(ours, helper._hear)
    with theirs:
        theirs.send(report)
        with pytest.raises(ProcessLookupError, match="helper process is gone"):
            await child.born
        assert child.dead.cancelled()
        with pytest.raises(WorldStartFailed, match=r"unreadable.*open it again"):
            await helper._fork("plain")
    await helper.close()


async def test_a_report_of_an_agent_whose_start_was_cancelled_is_no_error(
    tmp_path: Path, faults: list[dict[str, Any]]
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    helper, loop = ForkServerClient(tmp_path / "log"), asyncio.get_running_loop()
    helper._control, helper._process = ours, ended_process()
    gone, child = (AgentReports(loop.create_future(), loop.create_future()) for _ in range(2))
    helper._children |= {0: gone, 1: child}
    gone.born.cancel()
    gone.dead.cancel()
    loop.add_reader(ours, helper._hear)
    with theirs:
        for report in (b"born 0 11", b"dead 0 0", b"born 1 12", b"dead 1 3"):
            theirs.send(report)
        assert (await child.born, await child.dead) == (12, 3)
    await helper.close()


@pytest.mark.parametrize("sent", [b"nonsense", pack(CloneMount("x"))])
async def test_an_unreadable_reply_of_the_mount_server_fails_all_requests(
    sent: bytes, faults: list[dict[str, Any]]
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    trees = MountServerClient()
    trees.open(ours)
    asked = [asyncio.ensure_future(trees.clone("x")) for _ in range(2)]
    with theirs:
        theirs.setblocking(False)
        for _ in asked:
            await asyncio.get_running_loop().sock_recv(theirs, 1000)
        theirs.send(sent)
        for one in asked:
            with pytest.raises(WorldStartFailed, match="unreadable"):
                await one
    assert trees.gone
    trees.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_worlds_start_and_end_on_asyncio_and_uvloop(
    loop: str, store: SnapshotStore, base: Snapshot, spec: WorldSpec, scratch: Path
) -> None:
    """uvloop's transports are no subclasses of asyncio's."""
    new = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else asyncio.SelectorEventLoop

    async def main() -> str:
        async with CopyBackend(store, scratch) as backend:
            world = await backend.materialise(base, spec)
            return (await world.run("cat readme.txt")).stdout

    with asyncio.Runner(loop_factory=new) as runner:
        assert runner.run(main()) == "as it was\n"
        assert type(runner.get_loop()).__module__.startswith(loop)
