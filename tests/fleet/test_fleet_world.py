"""Worlds and searches on two raylets of this machine, one of which is killed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ramify import Runtime, search
from ramify.fleet.errors import NoFitNode
from ramify.fleet.fleet import Fleet
from ramify.fleet.fleet_world import FleetWorld
from ramify.fleet.types import Needs, NodeLost, WorldMoved
from ramify.tree_search.command_turns import CommandTurns
from ramify.tree_search.search import Beam
from ramify.tree_search.types import Turn
from ramify.worlds.errors import CommandFailed, PathRefused, WorldClosed, WorldError, WorldNotFound

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves files open and uses what is deprecated
    pytest.mark.timeout(240),  # its processes take seconds to start on slow machines
]
LONGEST_S = 120.0
Turns = CommandTurns[FleetWorld]


async def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not there():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def forks_spread(fleet: Fleet, folder: Path) -> None:
    """A fork stays where its parent is if a slot is free there. A cancelled command changes nothing."""
    async with fleet.world() as world:
        await world.exec("true")
        (alone,) = await world.fork()
        await alone.exec("true")
        assert alone.node == world.node
        hold = f"echo begun >> {folder}/begun; until [ -e {folder}/gate ]; do sleep 0.05; done"
        pair = await world.fork(2)
        holding = [asyncio.create_task(one.exec(hold)) for one in pair]
        await until(lambda: len(lines(folder / "begun")) == 2)
        assert {one.node for one in pair} == set(fleet.nodes)
        (folder / "gate").touch()
        await asyncio.gather(*holding)
        command = asyncio.create_task(alone.exec(f"echo no > words; touch {folder}/begins; sleep 600"))
        await until((folder / "begins").exists)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        assert (await alone.exec("cat words")).exit_code == 1
        for one in (alone, *pair):
            await one.close()


async def test_a_world_and_its_forks_live_on_nodes(
    raylets: Any, shared: Runtime, tmp_path: Path, folder: Path
) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "words").write_text("one\n")
    async with Fleet(shared, raylets.address) as fleet:
        assert fleet.slots == 2
        async with fleet.world(repo, env={"WORD": "two"}) as world:
            result = await world.exec("echo $WORD >> words; cat", stdin="in", check=True)
            assert result.stdout == "in"
            assert world.node in fleet.nodes
            with pytest.raises(CommandFailed):
                await world.exec(["false"], check=True)
            with pytest.raises(PathRefused):
                await world.write("../words", "no")
            await world.write("more", "three\n")
            assert await world.read("words") == b"one\ntwo\n"
            await world.run("cd /; WORD=kept")
            (fork,) = await world.fork()
            async with fork:
                assert (await fork.run("echo $WORD")).stdout == "kept\n"
                await fork.exec("rm words")
            assert await world.read("words") == b"one\ntwo\n"
            await world.checkout(tmp_path / "out")
            state = world.state
        with pytest.raises(WorldClosed):
            await world.exec("true")
        async with fleet.world(snapshot=state) as again:
            assert await again.read("more") == b"three\n"
        with pytest.raises(WorldNotFound):
            await fleet.world(snapshot="nothing").__aenter__()
        with pytest.raises(WorldError, match="name one of them"):
            await fleet.world(repo, snapshot=state).__aenter__()
        async with fleet.world(needs=Needs(resources={"GPU": 1})) as large:
            with pytest.raises(NoFitNode, match="it has 0 GPU"):
                await large.exec("true")
        await forks_spread(fleet, folder)
    assert (tmp_path / "out" / "words").read_text() == "one\ntwo\n"
    assert (repo / "words").read_text() == "one\n"


async def test_a_search_goes_on_after_a_node_was_killed(
    raylets: Any, shared: Runtime, heard: Any, folder: Path
) -> None:
    """Each action writes its word into the world, and outside it what it did. At depth 2 all wait for a gate, and one
    of the nodes is killed."""
    victim = raylets.add()
    log, gate = folder / "log", folder / "gate"

    async def propose(environment: Turns, history: Sequence[Turn[str]], n: int) -> list[str]:
        wait = f"until [ -e {gate} ]; do sleep 0.05; done; " if history else ""
        before = "".join(turn.action[-1] for turn in history)
        return [f"echo begins {before}{word} >> {log}; {wait}echo {word} >> words; : {word}" for word in "abc"[:n]]

    async def score(environment: Turns, history: Sequence[Turn[Any]]) -> float:
        words = (await environment.world.read("words")).decode().split()
        assert words == [turn.action[-1] for turn in history]  # no action is missing, and none is there twice
        return float(sum("abc".index(word) for word in words))

    async with (
        Fleet(shared, raylets.address, observer=heard.events.append) as fleet,
        fleet.world() as world,
    ):
        names = set(fleet.nodes)
        assert len(names) == fleet.slots == 3

        async def kill() -> None:
            await until(lambda: sum(len(line.split()[1]) == 2 for line in lines(log)) >= 3)
            await asyncio.to_thread(raylets.kill, victim)
            await until(lambda: bool(heard.of(NodeLost)))
            gate.touch()

        killing = asyncio.create_task(kill())
        async with search(CommandTurns(world), propose, width=3, depth=3, method=Beam(keep=2), score=score) as found:
            assert found.best.score == 6.0
            assert found.steps == 3 + 6 + 6
            assert not found.errors
            assert await found.best.environment.world.read("words") == b"c\nc\nc\n"
        await killing
        assert len(heard.of(NodeLost)) == 1
        assert {one.earlier for one in heard.of(WorldMoved)} == {(heard.of(NodeLost)[0].node,)}
    begun = Counter(line.split()[1] for line in lines(log))
    assert len(begun) == 15
    again = [path for path, times in begun.items() if times > 1]
    assert 1 <= len(again) <= len(heard.of(WorldMoved))  # only what the killed node was doing began again
    assert all(len(path) == 2 and begun[path] == 2 for path in again)
