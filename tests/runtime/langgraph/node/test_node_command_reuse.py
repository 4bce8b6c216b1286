"""Commands that are declared deterministic run only once in equal worlds, in nodes of graphs too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from ramify import Sandbox, SyncSandbox
from ramify.compiler.plan import OpKind
from ramify.runtime.errors import WrongReuse
from ramify.runtime.reuse.reuse import Sampler
from tests.runtime.langgraph.differential.pieces import Log, line


def builds(number: int, command: str) -> Any:
    async def node(state: Log, sandbox: Sandbox) -> Any:
        done = await sandbox.run(command, reuse=True, check=True)
        return {"log": [done.stdout.strip()]}

    return f"n{number}", node


def cleans(number: int) -> Any:
    def node(state: Log, sandbox: SyncSandbox) -> Any:
        sandbox.run("rm built", check=True)
        return {"log": ["gone"]}

    return f"n{number}", node


async def test_a_command_is_run_once_in_an_equal_world(tmp_path: Path, compile_graph: Any, kept: Any) -> None:
    count = tmp_path / "count"
    command = f"echo x >> {count}; cat hello.txt > built; wc -c < built"
    app = compile_graph(line(builds(1, command), cleans(2), builds(3, command)), checkpointer=InMemorySaver())
    for thread in ("1", "2"):
        config = {"configurable": {"thread_id": thread}}
        found = await app.ainvoke({"log": []}, config)
        assert found["log"][0] == found["log"][2]
        assert found["log"][1] == "gone"
    assert count.read_text() == "x\n"  # the second node and the second run reused the result
    rows = [row for row in kept(app).ops if row.kind is OpKind.COMMAND]
    assert [row.reused_from is not None for row in rows] == [True, True]
    assert {row.branch for row in rows} == {"root"}


async def test_in_another_world_it_is_run_again(compile_graph: Any, kept: Any) -> None:
    text = "wc -c < hello.txt > built"

    def changes(state: Log, sandbox: SyncSandbox) -> Any:
        (sandbox.path / "hello.txt").write_text("other")
        return {"log": ["changed"]}

    app = compile_graph(line(builds(1, text), ("changes", changes), builds(3, text)))
    await app.ainvoke({"log": []})
    rows = [row for row in kept(app).ops if row.kind is OpKind.COMMAND]
    assert [row.reused_from for row in rows] == [None, None]


async def tells(error: Exception) -> Any:
    return {"log": [type(error).__name__]}


async def asks(error: Exception) -> Any:
    return {"log": [interrupt("what now?")]}


async def raises(error: Exception) -> Any:
    raise ValueError("it did not work") from error


async def hands_over(error: Exception) -> Any:
    return Command(goto="careless")


@pytest.mark.parametrize("then", [tells, asks, raises, hands_over])
async def test_a_wrong_hit_ends_the_run_though_the_node_catches_it(
    compile_graph: Any, monkeypatch: pytest.MonkeyPatch, then: Any
) -> None:
    """A tool node does so: it reports the error to the model."""

    async def careless(state: Log, sandbox: Sandbox) -> Any:
        try:
            await sandbox.run("date +%s.%N > built", reuse=True, check=True)
        except Exception as error:  # noqa: BLE001
            return await then(error)
        return {"log": ["done"]}

    def app() -> Any:
        return compile_graph(line(("careless", careless)), checkpointer=InMemorySaver(), name="careless")

    config = {"configurable": {"thread_id": "1"}}
    assert (await app().ainvoke({"log": []}, config))["log"] == ["done"]
    monkeypatch.setenv("RAMIFY_CHECK_REUSE", "1")
    checking = app()
    with pytest.raises(WrongReuse, match="when it was recomputed it differed"):
        await checking.ainvoke({"log": []}, config)
    monkeypatch.setattr(Sampler, "hit", lambda _: False)
    assert (await checking.ainvoke({"log": []}, config))["log"][
        -1
    ] == "done"  # an invocation was stopped, not the app


async def test_a_wrong_hit_ends_the_run_though_a_handler_takes_it(
    compile_graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is a LangGraph node for errors of other nodes, from which the graph continues."""

    async def builds_it(state: Log, sandbox: Sandbox) -> Any:
        await sandbox.run("date +%s.%N > built", reuse=True, check=True)
        return {"log": ["done"]}

    def handled(state: Log, error: NodeError) -> Any:
        return {"log": [type(error.error).__name__]}

    def app() -> Any:
        graph = StateGraph(Log).add_node("builds", builds_it, error_handler=handled).add_edge(START, "builds")
        return compile_graph(graph, checkpointer=InMemorySaver(), name="handled")

    config = {"configurable": {"thread_id": "1"}}
    assert (await app().ainvoke({"log": []}, config))["log"] == ["done"]
    monkeypatch.setenv("RAMIFY_CHECK_REUSE", "1")
    with pytest.raises(WrongReuse, match="when it was recomputed it differed"):
        await app().ainvoke({"log": []}, config)
