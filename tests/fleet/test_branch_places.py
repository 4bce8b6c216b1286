"""Branches of one run on the processes of two nodes, without Ray: each has a home of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import branches_app
import pytest
import pytest_asyncio

from ramify import Runtime
from ramify.fleet.branch_places import BranchPlaces
from ramify.fleet.fleet import _shared
from ramify.fleet.nodes import FleetNodes
from ramify.fleet.placement import Member
from ramify.fleet.run_host import RunHost
from ramify.fleet.step_host import StepReply
from ramify.fleet.types import FleetEvent, HostFacts, Node, NodeId
from ramify.runtime.execution.placed_steps import StepOrder
from ramify.runtime.records import OpRecord

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")

FACTS = HostFacts("0.2.0", "3.11.7", "m", 7, "boot", "/home", 8 << 30, {"copy": ""}, "no CRIU")


@dataclass
class Near(RunHost):
    """The process of a node, in this process."""

    orders: list[StepOrder] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def begin_step(self, order: StepOrder, sandbox: str) -> StepReply:
        self.orders.append(order)
        return await super().begin_step(order, sandbox)

    async def kill(self) -> None:
        pass


@dataclass
class Fleet:
    runtime: Runtime
    nodes: FleetNodes
    hosts: dict[str, Near]
    events: list[FleetEvent]

    def here(self, slots: int) -> None:
        """This process is a node with so many slots."""
        self.nodes.here = NodeId("here")
        self._add("here", None, slots)

    def _add(self, name: str, host: Any, slots: int = 1) -> None:
        self.nodes.queue.add(Member(Node(NodeId(name), name, {"CPU": 1.0}), FACTS, host, slots))

    async def rows(self) -> list[OpRecord]:
        (run,) = await self.runtime.store.runs()
        return list(await self.runtime.store.ops(run.id))

    async def ran(self, step: str) -> list[str]:
        """Where the calls of a step ran, in the order of their branches; "" is here."""
        rows = [row for row in await self.rows() if row.step == step and row.kind == "RUN"]
        return [row.attrs.get("node", "").partition(" ")[0] for row in sorted(rows, key=lambda row: row.branch)]


@pytest_asyncio.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    events: list[FleetEvent] = []
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as runtime:
        nodes, hosts = FleetNodes("none", slots=1, patience_s=5.0, observer=events.append), {}
        made = Fleet(runtime, nodes, hosts, events)
        for name in ("a", "b"):
            monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / name))
            host = hosts[name] = Near()
            assert await host.open(_shared(runtime), "copy", name) is None
            made._add(name, host)
        with runtime.placing(partial(BranchPlaces, nodes, runtime)):
            yield made
        for host in hosts.values():
            assert await host.close() is None


async def test_a_fork_is_spread_and_what_it_makes_is_as_if_it_were_not(fleet: Fleet, folder: Path) -> None:
    (folder / branches_app.GATE).touch()
    result = await fleet.runtime.run(branches_app.grow, str(folder), 4)
    words = "root\n3\nb\n"
    assert result == [[0, 1, 2, 3], ["root\n3\na\n", "root\n3\nb\n"], words, words, [0, 1, 4, 9], words]
    assert set(await fleet.ran("write")) == {"a", "b"}
    assert set(await fleet.ran("square")) == {"a", "b"}
    assert await fleet.ran("send") == [""]
