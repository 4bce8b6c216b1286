"""What the process on a node does with the worlds that it is given, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from ramify import Runtime
from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.fleet import _shared
from ramify.fleet.run_host import RunHost
from ramify.fleet.world_host import WorldAnswer, WorldKey, WorldOrder, WorldSetup
from ramify.fleet.world_operations import Command, Operation, Read, Write
from ramify.fork_engine.types import SnapshotId
from ramify.sandboxes.contract import RunResult
from ramify.worlds.errors import PathRefused

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")

KEY = WorldKey("w1")
SETUP = WorldSetup("copy", "/tmp/workspace", {"GREETING": "hello"}, None)


class Node:
    """A home and a process of a node."""

    def __init__(self, host: RunHost, state: SnapshotId) -> None:
        self.host, self.state = host, state

    async def do(self, operation: Operation, state: SnapshotId | None = None, key: WorldKey = KEY) -> WorldAnswer:
        """Do it from that state, or from the one that the last answer told."""
        answer = await self.host.in_world(WorldOrder(key, state or self.state, SETUP, operation))
        if answer.state is not None:
            self.state = answer.state.id
        return answer

    async def output(self, command: str, state: SnapshotId | None = None) -> str:
        result = (await self.do(Command(command), state)).result
        assert isinstance(result, RunResult)
        return result.stdout


@pytest_asyncio.fixture
async def program(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as runtime:
        yield runtime


@pytest_asyncio.fixture
async def node(program: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "words").write_text("one\n")
    base = program.snapshots.import_tree(tmp_path / "repo").snapshot.id
    assert program.bucket is not None
    await program.bucket.upload(base)
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "node"))
    host = RunHost()
    assert await host.open(_shared(program), "copy", "m") is None
    yield Node(host, base)
    assert await host.close() is None


async def test_an_answered_operation_is_in_the_bucket(node: Node, program: Runtime) -> None:
    assert await node.output("cat words; echo $GREETING") == "one\nhello\n"
    assert (await node.do(Write("words", b"two\n", 0o644))).error is None
    assert (await node.do(Read("words", 100))).result == b"two\n"
    assert program.bucket is not None
    state = await program.bucket.fetch(node.state)
    assert state.id == node.state


async def test_the_shell_is_kept_with_the_files(node: Node) -> None:
    await node.do(Command("cd /; WORD=kept", in_shell=True))
    await node.host.close_world(KEY)
    result = (await node.do(Command("echo $WORD $PWD", in_shell=True))).result
    assert isinstance(result, RunResult)
    assert result.stdout.split()[0] == "kept"


async def test_an_answer_that_nobody_heard_did_not_happen(node: Node) -> None:
    before = node.state
    assert await node.output("echo two >> words; cat words") == "one\ntwo\n"
    assert await node.output("cat words", before) == "one\n"


async def test_an_operation_that_fails_changes_nothing(node: Node) -> None:
    assert await node.output("cat words") == "one\n"
    before = node.state
    answer = await node.do(Write("../words", b"no", 0o644))
    assert answer.error is not None
    assert isinstance(rebuilt(answer.error, "m"), PathRefused)
    assert answer.state is None
    assert node.state == before
    assert await node.output("cat words") == "one\n"


async def test_a_world_that_is_closed_ends_its_operation(node: Node, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    working = asyncio.ensure_future(node.do(Command(f"echo two >> words; touch {begun}; sleep 600")))
    while not begun.exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await node.host.close_world(KEY)
    assert (await working).cancelled
    assert await node.output("cat words") == "one\n"


async def test_a_state_that_is_nowhere_is_told(node: Node) -> None:
    answer = await node.do(Command("true"), SnapshotId("0" * 64))
    assert answer.error is not None
    assert "has no snapshot 0000" in str(rebuilt(answer.error, "m"))


async def test_closing_ends_the_first_command_of_a_node(node: Node) -> None:
    order = WorldOrder(KEY, node.state, SETUP, Command("sleep 60"))
    doing = asyncio.ensure_future(node.host.in_world(order))
    await asyncio.sleep(0)
    await node.host.close_world(KEY)
    assert (await doing).cancelled


async def test_a_command_that_nobody_hears_is_not_seen_by_the_next_one(node: Node) -> None:
    assert await node.output("ls") == "words\n"
    order = WorldOrder(KEY, node.state, SETUP, Command("touch unheard; sleep 60"))
    unheard = asyncio.ensure_future(node.host.in_world(order))
    await asyncio.sleep(0.3)
    assert await node.output("ls") == "words\n"
    assert (await unheard).cancelled
