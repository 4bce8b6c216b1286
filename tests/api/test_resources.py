"""Which backend a runtime opens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import ramify
from ramify import Runtime, Sandbox, llm, step, workflow
from ramify.fork_engine.types import Snapshot
from ramify.runtime.errors import RunFailed
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.copying import CopyBackend

MADE: list[str] = []


class Mine(CopyBackend):
    """Derived from one of Ramify's own, and still called "copy"."""

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        MADE.append("fork")
        return await super().fork(snapshot, spec, n)

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        MADE.append("materialise")
        return await super().materialise(snapshot, spec)


@step
async def look(sandbox: Sandbox) -> str:
    return (await sandbox.run("echo seen", check=True)).stdout


@workflow
async def looking() -> str:
    return await look()


async def test_a_backend_of_ones_own_is_used_whatever_it_is_called(home: Path) -> None:
    MADE.clear()
    async with Runtime(home=home, sandbox=Mine) as runtime:
        assert await runtime.run(looking) == "seen\n"
    assert MADE


def test_a_graph_goes_where_the_environment_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from langgraph.graph import START, StateGraph

    def place(state: dict[str, str], sandbox: ramify.SyncSandbox) -> dict[str, str]:
        return {"place": str(sandbox.path)}

    monkeypatch.setenv("RAMIFY_SANDBOX", "copy")
    graph = StateGraph(dict)
    graph.add_node(place)
    graph.add_edge(START, "place")
    with ramify.compile(graph, home=home) as app:
        assert app.invoke({})["place"].startswith(str(home))


@workflow
async def asks() -> int:
    return (await llm.choose("Anybody?", ["yes", "no"])).best


async def test_a_model_address_where_nothing_listens_is_said_before_any_call(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, and not listening: a connection is refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with Runtime(home=tmp_path, sandbox="copy", base_url=address) as runtime:
            with pytest.raises(RunFailed, match=r"no server at http://127\.0\.0\.1:.*--base-url"):
                await runtime.run(asks)
            assert await runtime.llm_calls() == []
