"""An `ainvoke` that is cancelled in the middle leaves a thread that continues where its last superstep ended."""

from __future__ import annotations

import asyncio
import operator
import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from ramify import Sandbox, Saver
from ramify.runtime.records import RunStatus

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    seen: Annotated[list[str], operator.add]


async def is_under_way(app: Any, pid: Path) -> bool:
    """Tell whether one sibling has finished and is recorded, and the other's command is running."""
    done = [task.name for task in (await app.aget_state(CONFIG)).tasks if task.result]
    return done == ["quick"] and pid.exists() and bool(pid.read_text())


async def test_a_cancelled_ainvoke_goes_on(compile_graph: Any, kept: Any, tmp_path: Path) -> None:
    ran: list[str] = []
    begun, is_open = asyncio.Event(), asyncio.Event()

    async def work(name: str, sandbox: Sandbox) -> State:
        ran.append(name)
        (sandbox.path / name).write_text(name)
        if name == "slow" and not is_open.is_set():
            begun.set()
            await sandbox.run(f"echo $$ > {tmp_path}/pid; exec sleep 600")
        return {"seen": [name]}

    async def first(state: State, sandbox: Sandbox) -> State:
        return await work("first", sandbox)

    async def quick(state: State, sandbox: Sandbox) -> State:
        return await work("quick", sandbox)

    async def slow(state: State, sandbox: Sandbox) -> State:
        assert not (sandbox.path / "slow").exists(), "what the attempt that was cancelled left"
        return await work("slow", sandbox)

    async def last(state: State, sandbox: Sandbox) -> State:
        return {"seen": sorted(path.name for path in sandbox.path.iterdir() if path.name != "hello.txt")}

    graph = StateGraph(State).add_node("first", first).add_node("quick", quick).add_node("slow", slow)
    graph.add_node("last", last).add_edge(START, "first").add_edge("first", "quick").add_edge("first", "slow")
    graph.add_edge(["quick", "slow"], "last")
    async with Saver.open(tmp_path / "threads.db") as saver:
        app = compile_graph(graph, checkpointer=saver)
        task = asyncio.ensure_future(app.ainvoke({"seen": []}, CONFIG, durability="sync"))
        await asyncio.wait_for(begun.wait(), 60)
        while not await is_under_way(app, tmp_path / "pid"):  # noqa: ASYNC110  neither tells anybody
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
        state = await app.aget_state(CONFIG)
        (run,) = await asyncio.to_thread(lambda: kept(app).runs)
        assert (state.values["seen"], set(state.next), run.status) == (
            ["first", "quick"],
            {"slow"},
            RunStatus.CANCELLED,
        )
        is_open.set()
        done = await app.ainvoke(None, CONFIG)
        assert done["seen"] == ["first", "quick", "slow", "first", "quick", "slow"]
        assert sorted(ran) == ["first", "quick", "slow", "slow"]
