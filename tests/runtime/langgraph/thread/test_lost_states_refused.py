"""States that cannot be recomputed: the error says why, and no node runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import ramify
import ramify.graph
from ramify import Sandbox, SyncSandbox, current_sandbox, step
from ramify.runtime.langgraph.errors import StateGone
from tests.runtime.langgraph.differential.pieces import HUMAN, Scripted, calls
from tests.runtime.langgraph.lost_snapshots import CONFIG, LOG, State, line, look, lose, maker, states, stopped

pytestmark = pytest.mark.usefixtures("nothing_ran_again")


async def gone(app: Any) -> str:
    with pytest.raises(StateGone) as caught:
        await app.ainvoke(None, CONFIG)
    return str(caught.value)


async def test_a_node_of_unknown_effect_is_not_run_again(compile_graph: Any, saver: Any, home: Path) -> None:
    async def ambient(state: State) -> State:
        LOG.append("ambient")
        found: Any = current_sandbox()
        (found.path / "made").write_text("made")
        return {}

    def build(node: Any) -> Any:
        nodes: Any = [("a", maker("a")), ("ambient", node), ("look", look)]
        return StateGraph(State).add_sequence(nodes).add_edge(START, "a")

    app = compile_graph(build(ambient), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    told = await gone(compile_graph(build(ambient), checkpointer=saver))
    assert "node 'ambient' would have to run again" in told and "Sandbox" in told and "--from" in told
    assert LOG == []
    declared = step(effect="revertible")(ambient)
    seen = (await compile_graph(build(declared), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert "made: made" in seen


async def test_a_caller_of_unknown_effect_is_not_run_again(compile_graph: Any, saver: Any, home: Path) -> None:
    inner = StateGraph(State).add_sequence([("i", maker("i"))]).add_edge(START, "i").compile()

    async def call(state: State) -> State:
        LOG.append("call")
        return {"said": (await inner.ainvoke({"said": []}))["said"]}

    graph = StateGraph(State).add_sequence([("a", maker("a")), ("call", call), ("look", look)]).add_edge(START, "a")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    assert "node 'call' would have to run again" in await gone(compile_graph(graph, checkpointer=saver))
    assert LOG == []


@tool
def writes(path: str, sandbox: SyncSandbox) -> str:
    """Write a file."""
    LOG.append(path)
    (sandbox.path / path).write_text("made")
    return "written"


@tool
def writes_anywhere(path: str) -> str:
    """Write a file."""
    LOG.append(path)
    found: Any = current_sandbox()
    (found.path / path).write_text("made")
    return "written"


@pytest.mark.parametrize("kind", [writes, writes_anywhere], ids=lambda kind: kind.name)
def test_an_agents_tools_are_run_again_where_each_takes_its_world(
    kind: Any, compile_graph: Any, saver: Any, home: Path
) -> None:
    def agent() -> Any:
        said = [calls((kind.name, {"path": "x"})), AIMessage("done")]
        return compile_graph(create_agent(Scripted(responses=said), [kind]), checkpointer=saver)

    def goes_on(sandbox: SyncSandbox) -> None:
        LOG.append((sandbox.path / "x").read_text())

    app = agent()
    app.invoke(HUMAN, CONFIG)
    known = states(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    if kind is writes:
        ramify.graph.edit(agent(), CONFIG, goes_on)
        assert LOG == ["x", "made"]
    else:
        with pytest.raises(StateGone, match="node 'tools' would have to run again, and what it does outside"):
            ramify.graph.edit(agent(), CONFIG, goes_on)
        assert LOG == []


async def test_what_an_app_did_as_a_node_of_another_graph_is_not_run_again(
    compile_graph: Any, saver: Any, home: Path
) -> None:
    async def ask(state: State, sandbox: Sandbox) -> State:
        return {"said": [interrupt("go on?")]}

    def build() -> tuple[Any, Any]:
        graph = StateGraph(State).add_sequence([("i", maker("i")), ("ask", ask)]).add_edge(START, "i")
        ours = compile_graph(graph)
        return ours, StateGraph(State).add_node("ours", ours).add_edge(START, "ours").compile(checkpointer=saver)

    ours, plain = build()
    await plain.ainvoke({"said": []}, CONFIG)
    known = states(ours)
    ours.close()
    lose(home, known[-1])
    LOG.clear()
    _, plain = build()
    with pytest.raises(StateGone, match="node 'i' would have to run again, and no kept checkpoint says"):
        await plain.ainvoke(Command(resume="yes"), CONFIG)
    assert LOG == []


async def test_a_rerun_that_leaves_other_files_is_refused(
    compile_graph: Any, saver: Any, home: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("one")

    async def read(state: State, sandbox: Sandbox) -> State:
        (sandbox.path / "copied").write_text(outside.read_text())
        return {}

    nodes: Any = [("a", maker("a")), ("read", read), ("look", look)]
    graph = StateGraph(State).add_sequence(nodes).add_edge(START, "a")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    outside.write_text("two")
    told = await gone(compile_graph(graph, checkpointer=saver))
    assert "node 'read' was run again, and left other files than before" in told and "copied" in told
    outside.write_text("one")
    assert "copied: one" in (await compile_graph(graph, checkpointer=saver).ainvoke(None, CONFIG))["seen"]


async def test_an_edit_by_hand_is_not_recomputed(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    await stopped(app)
    ramify.graph.edit(app, CONFIG, lambda sandbox: (sandbox.path / "mine").write_text("mine"))
    edited = states(app)[-1]
    app.close()
    lose(home, edited)
    assert "a person edited" in await gone(compile_graph(line(), checkpointer=saver))


async def test_the_workspace_is_not_recomputed(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known)
    told = await gone(compile_graph(line(), checkpointer=saver))
    assert "the workspace as the run began with it" in told and "start a new thread" in told.lower()


async def test_a_thread_whose_checkpoints_were_pruned_says_so(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    saver.prune(["t"])
    lose(home, *known[2:])
    told = await gone(compile_graph(line(), checkpointer=saver))
    assert "node 'b' would have to run again, and no kept checkpoint says" in told


async def test_a_checkpointer_that_is_bound_to_a_loop_is_refused(compile_graph: Any, home: Path) -> None:
    class Bound(InMemorySaver):
        loop = None

    app = compile_graph(line(), checkpointer=Bound())
    lose(home, (await stopped(app))[-1])
    assert "Bound returns checkpoints on its own event loop only" in await gone(app)


async def test_a_checkpointer_for_async_callers_only_is_named(compile_graph: Any, home: Path) -> None:
    class AsyncOnly(InMemorySaver):
        def list(self, *args: Any, **options: Any) -> Any:
            raise NotImplementedError

    app = compile_graph(line(), checkpointer=AsyncOnly())
    lose(home, (await stopped(app))[-1])
    assert "AsyncOnly returns checkpoints to async callers only" in await gone(app)


async def test_a_task_that_failed_and_may_not_be_run_again_is_refused(
    compile_graph: Any, saver: Any, home: Path
) -> None:
    @task
    async def fails() -> None:
        LOG.append("fails")
        raise ValueError("it fails")

    @entrypoint()
    async def flow(name: str) -> None:
        with suppress(ValueError):
            await fails()
            LOG.append("it returned")
        found: Any = current_sandbox()
        (found.path / name).write_text(name)

    app = compile_graph(flow, checkpointer=saver)
    await app.ainvoke("x", CONFIG)
    known = states(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    with pytest.raises(StateGone, match="node 'fails' would have to run again, and what it does outside"):
        await compile_graph(flow, checkpointer=saver).ainvoke("y", CONFIG)
    assert LOG == []
