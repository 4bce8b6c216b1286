"""Graphs that a node's code calls, however hidden: their nodes act on the world of that node."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import ParentCommand
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

import ramify.graph
from ramify import SyncSandbox
from ramify.fork_engine.errors import MergeConflict
from ramify.runtime.langgraph.errors import NodesConflict

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    seen: Annotated[list[list[str]], operator.add]


def names(sandbox: Any) -> list[str]:
    return sorted(path.name for path in sandbox.path.iterdir() if path.name != "hello.txt")


def writer(name: str, text: str = "") -> Callable[..., State]:
    def write(state: State, sandbox: SyncSandbox) -> State:
        seen = names(sandbox)
        (sandbox.path / name).write_text(text)
        return {"seen": [seen]}

    return write


def asks(state: State, sandbox: SyncSandbox) -> State:
    seen = names(sandbox)
    (sandbox.path / f"got-{interrupt('name?')}").touch()
    return {"seen": [seen]}


def look(state: State, sandbox: SyncSandbox) -> State:
    return {"seen": [names(sandbox)]}


def chain(**nodes: Any) -> StateGraph[State]:
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for first, second in zip([START, *nodes], nodes, strict=False):
        graph.add_edge(first, second)
    return graph


def inner(**options: Any) -> Any:
    return chain(x=writer("x"), ask=asks, y=writer("y")).compile(**options)


def hidden(how: str) -> Any:
    """Return a node that runs `inner`, which asks a question."""
    table = {"closure": inner(), "dictionary": inner(), "unsaved": inner(checkpointer=False)}
    if how == "node":
        return inner()
    if how == "kept":
        return inner(checkpointer=True)

    def call(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "before").write_text("before")
        found = table[how].invoke({"seen": []})["seen"]
        (sandbox.path / "after").touch()
        return {"seen": [*found, names(sandbox)]}

    return call


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", ["node", "kept", "closure", "dictionary", "unsaved"])
async def test_a_subgraph_interrupts_and_goes_on(how: str, is_async: bool, compile_graph: Any) -> None:
    app = compile_graph(chain(a=writer("a"), sub=hidden(how), z=look), checkpointer=InMemorySaver())

    async def invoke(value: Any) -> Any:
        return await app.ainvoke(value, CONFIG) if is_async else await asyncio.to_thread(app.invoke, value, CONFIG)

    assert (await invoke({"seen": []}))["__interrupt__"][0].value == "name?"
    seen = (await invoke(Command(resume="bob")))["seen"]
    around = ["after", "before"] if how not in ("node", "kept") else []
    assert seen[-1] == sorted([*around, "a", "got-bob", "x", "y"])
    assert seen[-2 - bool(around)] == sorted(["a", *around[1:], "got-bob", "x"])  # the files that y found


@pytest.mark.parametrize("is_async", [False, True])
async def test_looking_at_a_subgraph_that_waits_knows_its_channels(
    is_async: bool, compile_graph: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lowest = StateGraph(State).add_node("w", writer("w")).add_node("ask", asks)
    lowest.add_edge(START, "w").add_edge(START, "ask")
    middle = chain(x=writer("x"), low=lowest.compile())
    app = compile_graph(chain(a=writer("a"), mid=middle.compile()), checkpointer=InMemorySaver())
    await app.ainvoke({"seen": []}, CONFIG)
    seen = await app.aget_state(CONFIG, subgraphs=True) if is_async else app.get_state(CONFIG, subgraphs=True)
    below = seen.tasks[0].state.tasks[0].state
    assert (seen.next, below.next) == (("mid",), ("ask",))
    assert all(list(each.values) == ["seen"] for each in (seen, seen.tasks[0].state, below))
    place = {name: below.config["configurable"][name] for name in ("thread_id", "checkpoint_ns")}
    there: Any = {"configurable": place}
    alone = await app.aget_state(there) if is_async else app.get_state(there)
    assert alone.next == ("ask",)
    assert [record for record in caplog.records if record.name.startswith("langgraph")] == []


def test_a_subgraph_is_one_node_on_its_callers_world(compile_graph: Any) -> None:
    sub = chain(x=writer("x"), y=writer("y")).compile()
    app = compile_graph(chain(a=writer("a"), sub=sub, z=look))
    assert app.invoke({"seen": []})["seen"][-1] == ["a", "x", "y"]


@pytest.mark.parametrize("kept", [True, None])
def test_a_subgraph_run_twice_begins_each_time_on_the_world_of_then(kept: bool | None, compile_graph: Any) -> None:
    sub = chain(x=writer("x")).compile(checkpointer=kept)
    graph = chain(sub=sub, middle=writer("middle"))
    graph.add_node("z", look).add_conditional_edges("middle", lambda state: "z" if len(state["seen"]) > 3 else "sub")
    app = compile_graph(graph, checkpointer=InMemorySaver())
    assert app.invoke({"seen": []}, CONFIG)["seen"][-1] == ["middle", "x"]
    assert app.invoke({"seen": []}, CONFIG)["seen"][-1] == ["middle", "x"]


@pytest.mark.parametrize("raised", [False, True])
def test_handing_over_to_the_graph_above_keeps_the_files(raised: bool, compile_graph: Any) -> None:
    def leave(state: State, sandbox: SyncSandbox) -> Command[Any]:
        (sandbox.path / "left").touch()
        command: Command[Any] = Command(graph=Command.PARENT, goto="z", update={"seen": [names(sandbox)]})
        if raised:
            raise ParentCommand(command)
        return command

    sub = chain(x=writer("x"), leave=leave).compile()
    graph = StateGraph(State).add_node("sub", sub, destinations=("z",)).add_node("z", look).add_edge(START, "sub")
    app = compile_graph(graph, checkpointer=InMemorySaver())
    assert app.invoke({"seen": []}, CONFIG)["seen"] == [["left", "x"], ["left", "x"]]


def test_two_sends_into_one_subgraph_each_have_a_world(compile_graph: Any) -> None:
    class Part(State, total=False):
        name: str

    def write(state: Part, sandbox: SyncSandbox) -> State:
        seen = names(sandbox)
        (sandbox.path / state["name"]).touch()
        return {"seen": [seen]}

    sub = StateGraph(Part).add_node("w", write).add_node("l", look).add_edge(START, "w").add_edge("w", "l").compile()
    graph = StateGraph(State).add_node("sub", sub).add_node("z", look, defer=True)
    graph.add_conditional_edges(START, lambda state: [Send("sub", {"name": n}) for n in "pq"], ["sub"])
    app = compile_graph(graph.add_edge("sub", "z"), checkpointer=InMemorySaver())
    seen = app.invoke({"seen": []}, CONFIG)["seen"]
    assert seen == [[], ["p"], [], ["q"], ["p", "q"]]


async def test_graphs_that_a_node_runs_at_once_are_merged(compile_graph: Any) -> None:
    left, right = chain(x=writer("x")).compile(), chain(y=writer("y")).compile()
    other = chain(x=writer("x", "another")).compile()

    async def both(state: State, sandbox: ramify.Sandbox) -> State:
        await asyncio.gather(left.ainvoke({"seen": []}), right.ainvoke({"seen": []}))
        return {"seen": [names(sandbox)]}

    assert (await compile_graph(chain(both=both)).ainvoke({"seen": []}))["seen"] == [["x", "y"]]

    async def clash(state: State) -> None:
        await asyncio.gather(left.ainvoke({"seen": []}), other.ainvoke({"seen": []}))

    with pytest.raises(MergeConflict):
        await compile_graph(chain(clash=clash)).ainvoke({"seen": []})


def test_siblings_inside_a_subgraph_conflict_by_name(compile_graph: Any) -> None:
    def side(text: str) -> Any:
        def write(state: State, sandbox: SyncSandbox) -> None:
            (sandbox.path / "same").write_text(text)

        return write

    sub = (
        StateGraph(State).add_node("l", side("l")).add_node("r", side("r")).add_edge(START, "l").add_edge(START, "r")
    )
    with pytest.raises(NodesConflict, match="'l' and 'r'"):
        compile_graph(chain(sub=sub.compile())).invoke({"seen": []})


def test_a_failed_attempt_of_a_node_forgets_its_graphs_files(compile_graph: Any) -> None:
    sub = chain(x=writer("x")).compile()
    tries: list[int] = []

    def flaky(state: State, sandbox: SyncSandbox) -> State:
        found = sub.invoke({"seen": []})["seen"]
        tries.append(1)
        if len(tries) < 2:
            raise OSError("again")
        return {"seen": [*found, names(sandbox)]}

    policy = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError)
    graph = StateGraph(State).add_node("flaky", flaky, retry_policy=policy).add_edge(START, "flaky")
    assert compile_graph(graph).invoke({"seen": []})["seen"] == [[], ["x"]]


def test_a_graph_that_a_node_abandoned_leaves_no_files(compile_graph: Any) -> None:
    def fails(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "half").touch()
        raise ValueError("no")

    sub = chain(x=writer("x"), fails=fails).compile()

    def tries(state: State, sandbox: SyncSandbox) -> State:
        with pytest.raises(ValueError, match="no"):
            sub.invoke({"seen": []})
        return {"seen": [names(sandbox)]}

    assert compile_graph(chain(tries=tries)).invoke({"seen": []})["seen"] == [[]]


def test_a_graph_of_ours_in_a_plain_graph(compile_graph: Any) -> None:
    ours = compile_graph(chain(x=writer("x"), ask=asks, y=look))
    plain = chain(sub=ours).compile(checkpointer=InMemorySaver())
    assert plain.invoke({"seen": []}, CONFIG)["__interrupt__"]
    assert plain.invoke(Command(resume="bob"), CONFIG)["seen"] == [[], ["x"], ["got-bob", "x"]]


def test_a_graph_of_ours_in_another_of_ours_has_worlds_of_its_own(compile_graph: Any) -> None:
    ours = compile_graph(chain(x=writer("x"), y=look))
    outer = compile_graph(chain(a=writer("a"), sub=lambda state: ours.invoke({"seen": []}), node=ours, z=look))
    seen = outer.invoke({"seen": []})["seen"]
    assert ["x"] in seen and ["a"] in seen
    assert ["a", "x"] not in seen
    assert seen[-1] == ["a"]


def test_pregel_is_unpatched_when_nothing_runs(compile_graph: Any) -> None:
    from langgraph.pregel import Pregel

    before = Pregel.stream, Pregel.astream
    app = compile_graph(chain(sub=chain(x=writer("x")).compile()))
    app.invoke({"seen": []})
    assert (Pregel.stream, Pregel.astream) == before
    assert before[0].__module__ == "langgraph.pregel.main"


@pytest.mark.parametrize("durability", ["sync", "exit", "async"])
@pytest.mark.parametrize("over", [False, True])
async def test_a_subgraph_that_saves_nothing_under_any_durability(
    durability: Any, over: bool, compile_graph: Any
) -> None:
    sub = chain(x=writer("x")).compile(checkpointer=False)
    app = compile_graph(chain(sub=compile_graph(sub) if over else sub), checkpointer=InMemorySaver())
    assert app.invoke({"seen": []}, CONFIG, durability=durability)["seen"]
    assert (await app.ainvoke({"seen": []}, CONFIG, durability=durability))["seen"]


@pytest.mark.parametrize("checkpoint", [{}, {"checkpoint_ns": ""}])
def test_a_graph_called_on_a_thread_of_its_own(checkpoint: dict[str, str], compile_graph: Any) -> None:
    """LangGraph drops the node's own config then. The graph acts on the node's world all the same, each time."""
    called = chain(write=writer("a")).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "its own", **checkpoint}}

    def call(state: State) -> State:
        return {"seen": called.invoke({"seen": []}, config)["seen"][-1:]}

    app = compile_graph(chain(call=call, look=look), checkpointer=InMemorySaver())
    assert app.invoke({"seen": []}, CONFIG)["seen"] == [[], ["a"]]
    assert app.invoke({"seen": []}, CONFIG)["seen"] == [[], ["a"], ["a"], ["a"]]


def test_a_graph_on_a_thread_of_its_own_asks_and_goes_on(compile_graph: Any) -> None:
    called = chain(write=writer("a"), asks=asks).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "its own"}}

    def call(state: State) -> State:
        assert "__interrupt__" in called.invoke({"seen": []}, config)
        return {"seen": called.invoke(Command(resume="b"), config)["seen"][-1:]}

    assert compile_graph(chain(call=call, look=look)).invoke({"seen": []})["seen"] == [["a"], ["a", "got-b"]]
