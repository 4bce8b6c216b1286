"""Threads whose snapshots are lost: each is made again by running what made it, and nothing else; or refused."""

from __future__ import annotations

import asyncio
import gc
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

import ramify
import ramify.graph
from ramify import Sandbox, SyncSandbox, current_sandbox, llm, paths, step
from ramify.fork_engine import crash
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.collect import Marks, collect
from ramify.runtime.costs import regrets
from ramify.runtime.events import Event, Level, Recovered
from ramify.runtime.langgraph.errors import StateGone
from ramify.runtime.langgraph.session import Invocation
from ramify.runtime.pins import Pins
from ramify.runtime.store import RunStore
from ramify.serving.testing import ScriptedModel

CONFIG: Any = {"configurable": {"thread_id": "t"}}
LOG: list[str] = []
"""What was run, by the names of nodes."""


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    seen: list[str]


def maker(name: str, text: str | None = None) -> Callable[..., Any]:
    """A node that leaves what a model says of it."""

    async def make(state: State, sandbox: Sandbox) -> State:
        LOG.append(name)
        said = text or (await llm.chat(f"{name}?")).text
        found = sorted(path.name for path in sandbox.path.iterdir())
        (sandbox.path / name).write_text(f"{said} after {found}")
        return {"said": [name]}

    make.__name__ = name
    return make


async def look(state: State, sandbox: Sandbox) -> State:
    return {"seen": [f"{path.name}: {path.read_text()}" for path in sorted(sandbox.path.iterdir())]}


def line() -> StateGraph[State]:
    nodes = [(name, maker(name)) for name in "abc"]
    return StateGraph(State).add_sequence([*nodes, ("look", look)]).add_edge(START, "a")


def sides() -> StateGraph[State]:
    graph = StateGraph(State).add_node("a", maker("a")).add_node("look", look).add_edge(START, "a")
    for name in ("l", "m", "r"):
        graph.add_node(name, maker(name)).add_edge("a", name)
    return graph


def fan() -> StateGraph[State]:
    return sides().add_edge(["l", "m", "r"], "look")


def merging() -> StateGraph[State]:
    return sides().add_node("z", maker("z")).add_edge(["l", "m", "r"], "z").add_edge("z", "look")


def sends() -> StateGraph[State]:
    async def one(state: dict[str, str], sandbox: Sandbox) -> State:
        LOG.append(state["of"])
        (sandbox.path / state["of"]).write_text((await llm.chat(state["of"])).text)
        return {"said": [state["of"]]}

    graph = StateGraph(State).add_node("a", maker("a")).add_node("one", one).add_node("look", look)
    graph.add_edge(START, "a").add_edge("one", "look")
    return graph.add_conditional_edges("a", lambda state: [Send("one", {"of": name}) for name in "xy"], ["one"])


def asking() -> StateGraph[State]:
    async def ask(state: State, sandbox: Sandbox) -> State:
        LOG.append("ask")
        answers = [interrupt("first?"), interrupt("second?")]
        (sandbox.path / "ask").write_text(str(answers))
        return {"said": answers}

    nodes: Any = [("a", maker("a")), ("ask", ask), ("b", maker("b")), ("look", look)]
    return StateGraph(State).add_sequence(nodes).add_edge(START, "a")


def inside() -> StateGraph[State]:
    """A graph as a node, and one that a node's code calls, on its world."""
    inner = StateGraph(State).add_sequence([("i", maker("i")), ("j", maker("j"))]).add_edge(START, "i").compile()
    other = StateGraph(State).add_sequence([("k", maker("k"))]).add_edge(START, "k").compile()

    async def call(state: State, sandbox: Sandbox) -> State:
        LOG.append("call")
        (sandbox.path / "before").write_text("before")
        await other.ainvoke({"said": []})
        (sandbox.path / "after").write_text(str(sorted(path.name for path in sandbox.path.iterdir())))
        return {"said": ["call"]}

    nodes: Any = [("a", maker("a")), ("inner", inner), ("call", call), ("look", look)]
    return StateGraph(State).add_sequence(nodes).add_edge(START, "a")


def loop() -> StateGraph[State]:
    async def count(state: State, sandbox: Sandbox) -> State:
        LOG.append("count")
        said = (await llm.chat(f"round {len(state['said'])}")).text
        with (sandbox.path / "count").open("a") as file:
            file.write(f"{said}\n")
        return {"said": ["."]}

    graph = StateGraph(State).add_node("count", count).add_node("look", look).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda state: "look" if len(state["said"]) > 2 else "count")


def commanding() -> StateGraph[State]:
    """A node that is not async, and goes on by a Command."""

    def turn(state: State, sandbox: Sandbox) -> Command[str]:
        LOG.append("turn")
        (sandbox.path / "turn").write_text("turned")
        return Command(update={"said": ["turn"]}, goto="b")

    graph = StateGraph(State).add_node("turn", turn, destinations=("b",)).add_node("b", maker("b"))
    return graph.add_node("look", look).add_edge(START, "turn").add_edge("b", "look")


AGAIN = RetryPolicy(initial_interval=0, jitter=False, retry_on=OSError)
SHAPES = [line, fan, merging, sends, asking, inside, loop, commanding]


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    LOG.clear()
    yield
    crash.at = None


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[ramify.graph.Saver]:
    with ramify.graph.Saver(tmp_path / "threads.db") as saver:
        yield saver


async def stopped(app: Any, config: Any = CONFIG) -> list[str]:
    """Run the thread to before its last node; the snapshots of its run, the workspace's first."""
    state = await app.ainvoke({"said": []}, config, interrupt_before=["look"])
    for answer in ("yes", "no"):
        if "__interrupt__" in state:
            state = await app.ainvoke(Command(resume=answer), config, interrupt_before=["look"])
    assert (await app.aget_state(config)).next == ("look",)
    return states(app)


def before(app: Any, node: str) -> Any:
    return next(state for state in app.get_state_history(CONFIG) if state.next == (node,))


def states(app: Any) -> list[str]:
    services = app.session.portal.wait(app.session.services())
    known = app.session.portal.wait(services.store.checkpoints(app.session.last_run_id))
    return list(dict.fromkeys(one.snapshot_id for one in known))


def contents(app: Any) -> dict[str, str]:
    """What the journal says of each state."""
    services = app.session.portal.wait(app.session.services())
    known = app.session.portal.wait(services.store.checkpoints(app.session.last_run_id))
    return {one.snapshot_id: one.content_key for one in known}


def lose(home: Path, *ids: str) -> None:
    for id in set(ids):
        (paths.snapshots(home) / "snapshots" / f"{id}.json").unlink()


class Heard:
    def __init__(self) -> None:
        self.recovered: list[Recovered] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Recovered):
            self.recovered.append(event)


@pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)
async def test_each_lost_state_is_made_again(
    build: Callable[[], Any], compile_graph: Any, saver: Any, home: Path, scripted: ScriptedModel
) -> None:
    """A state of the thread, with all after it: the thread ends as one that lost nothing. `RAMIFY_DEEP=1`: each."""
    app = compile_graph(build(), checkpointer=saver)
    number = len(await stopped(app))
    expected = (await app.ainvoke(None, CONFIG))["seen"]
    assert number > 2
    tails = range(1, number) if "RAMIFY_DEEP" in os.environ else sorted({1, number // 2, number - 1})
    for first in tails:
        config = {"configurable": {"thread_id": f"lost {first}"}}
        heard = Heard()
        once = compile_graph(build(), checkpointer=saver)
        known = await stopped(once, config)
        content = contents(once)
        once.close()
        assert len(known) == number
        lose(home, *known[first:])
        before = len(scripted.calls)
        again = compile_graph(build(), checkpointer=saver, observer=heard)
        assert (await again.ainvoke(None, config))["seen"] == expected, first
        assert len(scripted.calls) == before, "a model was asked again"
        assert {one.level for one in heard.recovered} == {Level.LINEAGE}, first
        rows = again.session.portal.wait(again.session.services()).store.ops(again.session.last_run_id)
        for row in again.session.portal.wait(rows):
            if (lost := row.attrs.get("again")) is not None:
                assert row.result_digest == content[lost], row.summary
        again.close()


async def test_only_what_is_lost_is_run_again(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    heard = Heard()
    await compile_graph(line(), checkpointer=saver, observer=heard).ainvoke(None, CONFIG)
    assert LOG == ["c"]
    assert "done again: node 'c'" in heard.recovered[0].why and "is not in the store" in heard.recovered[0].why


async def test_a_sibling_that_is_whole_is_left_alone(compile_graph: Any, saver: Any, home: Path, kept: Any) -> None:
    app = compile_graph(fan(), checkpointer=saver)
    await stopped(app)
    (lost,) = [one.snapshot_id for one in kept(app).checkpoints if one.label == "m"]
    app.close()
    lose(home, lost)
    LOG.clear()
    seen = (await compile_graph(fan(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "hello.txt", "l", "m", "r"]
    assert LOG == ["m"]


async def test_a_damaged_layer_is_a_lost_state(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    store = SnapshotStore(paths.snapshots(home))
    store.lower_dirs(store.get(known[-1]))[-1].parent.rename(home / "gone")  # type: ignore[arg-type]
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt"]


async def test_what_was_made_again_stands_in_for_the_lost_from_then_on(
    compile_graph: Any, saver: Any, home: Path, kept: Any
) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[2:])
    again = compile_graph(line(), checkpointer=saver)
    await again.ainvoke(None, CONFIG)
    assert [choice.chose for choice in regrets(kept(again).ops)] == ["compute again"] * 2
    again.close()
    LOG.clear()
    heard = Heard()
    later = compile_graph(line(), checkpointer=saver, observer=heard)
    back = before(later, "c")
    assert b"b? after" in ramify.graph.read(later, back.config, "b")
    await later.ainvoke(None, back.config)
    assert (LOG, heard.recovered) == (["c"], [])


@pytest.mark.parametrize(
    ("point", "times"),
    [("world made", 1), ("world made", 2), ("rows numbered", 1), ("rows durable", 1), ("rows durable", 4)],
)
async def test_a_crash_on_the_way_leaves_a_thread_that_goes_on(
    point: str, times: int, compile_graph: Any, saver: Any, home: Path
) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[1:])

    class Killed(BaseException):
        pass

    passed: list[str] = []

    def die(name: str) -> None:
        passed.append(name)
        if passed.count(point) == times:
            crash.at = None
            raise Killed

    crash.at = die
    broken = compile_graph(line(), checkpointer=saver)
    with pytest.raises(BaseException):  # noqa: B017  whatever a kill looks like from here
        await broken.ainvoke(None, CONFIG)
    broken.close()
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt"]


def test_a_thread_in_memory_and_nodes_that_are_not_async(compile_graph: Any, home: Path) -> None:
    def write(state: State, sandbox: Sandbox) -> State:
        LOG.append("write")
        (sandbox.path / "made").write_text("made")
        return {"said": ["write"]}

    def see(state: State, sandbox: Sandbox) -> State:
        return {"seen": sorted(path.name for path in sandbox.path.iterdir())}

    graph = StateGraph(State).add_sequence([("write", write), ("look", see)]).add_edge(START, "write")
    app = compile_graph(graph, checkpointer=InMemorySaver())
    app.invoke({"said": []}, CONFIG, interrupt_before=["look"])
    lose(home, states(app)[-1])
    assert app.invoke(None, CONFIG)["seen"] == ["hello.txt", "made"]
    assert LOG == ["write", "write"]


async def test_the_tasks_of_an_entrypoint_are_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    @task
    async def make(name: str, sandbox: Sandbox) -> str:
        LOG.append(name)
        (sandbox.path / name).write_text(name)
        return name

    def flow() -> Any:
        @entrypoint()
        async def flow(names: list[str]) -> list[str]:
            made = [await make(name) for name in names]
            interrupt("go on?")
            found: Any = current_sandbox()
            return [*made, *sorted(path.name for path in found.path.iterdir())]

        return flow

    app = compile_graph(flow(), checkpointer=saver)
    await app.ainvoke(["x", "y"], CONFIG)
    known = states(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    again = compile_graph(flow(), checkpointer=saver)
    assert await again.ainvoke(Command(resume=True), CONFIG) == ["x", "y", "hello.txt", "x", "y"]
    assert LOG == ["x", "y"]


async def test_a_fork_of_the_past_is_made_again_through_its_parents(
    compile_graph: Any, saver: Any, home: Path
) -> None:
    app = compile_graph(line(), checkpointer=saver)
    await stopped(app)
    back = before(app, "b")
    await app.ainvoke(None, back.config, interrupt_before=["look"])
    known = states(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt"]
    assert LOG == ["a", "b", "c"]


async def test_a_copied_thread_is_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    lose(home, *known[1:])
    copied = {"configurable": {"thread_id": "copy"}}
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, copied))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt"]


async def test_a_sibling_that_still_asks_is_not_run_for_it(
    compile_graph: Any, saver: Any, home: Path, kept: Any
) -> None:
    """One sibling is done and its files are lost, the other waits for a person."""

    async def ask(state: State, sandbox: Sandbox) -> State:
        LOG.append("ask")
        return {"said": [interrupt("go on?")]}

    graph = StateGraph(State).add_node("l", maker("l")).add_node("ask", ask).add_node("look", look)
    graph.add_edge(START, "l").add_edge(START, "ask").add_edge(["l", "ask"], "look")
    app = compile_graph(graph, checkpointer=saver)
    await app.ainvoke({"said": []}, CONFIG)
    (lost,) = [one.snapshot_id for one in kept(app).checkpoints if one.label == "l"]
    app.close()
    lose(home, lost)
    LOG.clear()
    again = compile_graph(graph, checkpointer=saver)
    assert "l: said l? after ['hello.txt']" in (await again.ainvoke(Command(resume="yes"), CONFIG))["seen"]
    assert LOG == ["ask", "l"]


async def test_a_graph_in_a_node_that_asked_is_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    async def ask(state: State, sandbox: Sandbox) -> State:
        LOG.append("ask")
        (sandbox.path / "ask").write_text(interrupt("go on?"))
        return {"said": ["ask"]}

    nodes: Any = [("i", maker("i")), ("ask", ask), ("j", maker("j"))]
    inner = StateGraph(State).add_sequence(nodes).add_edge(START, "i").compile()
    graph = StateGraph(State).add_sequence([("a", maker("a")), ("inner", inner), ("look", look)])
    graph.add_edge(START, "a")
    for lost in range(1, 5):
        config = {"configurable": {"thread_id": str(lost)}}
        app = compile_graph(graph, checkpointer=saver)
        known = await stopped(app, config)
        assert len(known) == 5
        app.close()
        lose(home, *known[lost:])
        LOG.clear()
        seen = (await compile_graph(graph, checkpointer=saver).ainvoke(None, config))["seen"]
        assert [line.split(":")[0] for line in seen] == ["a", "ask", "hello.txt", "i", "j"]
        assert ["a", "i", "ask", "j"][lost - 1 :] == LOG


async def test_while_a_graph_in_a_node_asks_its_files_are_made_again(
    compile_graph: Any, saver: Any, home: Path
) -> None:
    async def ask(state: State, sandbox: Sandbox) -> State:
        return {"said": [interrupt("go on?")], "seen": sorted(path.name for path in sandbox.path.iterdir())}

    inner = StateGraph(State).add_sequence([("i", maker("i")), ("ask", ask)]).add_edge(START, "i").compile()
    graph = StateGraph(State).add_sequence([("a", maker("a")), ("inner", inner)]).add_edge(START, "a")
    app = compile_graph(graph, checkpointer=saver)
    await app.ainvoke({"said": []}, CONFIG)
    known = states(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    again = compile_graph(graph, checkpointer=saver)
    assert (await again.ainvoke(Command(resume="yes"), CONFIG))["seen"] == ["a", "hello.txt", "i"]
    assert LOG == ["a", "i"]


async def test_an_error_handler_is_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    async def fail(state: State, sandbox: Sandbox) -> State:
        LOG.append("fail")
        raise ValueError("it fails")

    async def mend(state: State, sandbox: Sandbox) -> Command[str]:
        LOG.append("mend")
        (sandbox.path / "mend").write_text("mended")
        return Command(goto="look")

    graph = StateGraph(State).add_node("fail", fail, error_handler=mend).add_node("look", look)
    graph.add_edge(START, "fail")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    seen = (await compile_graph(graph, checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["hello.txt", "mend"]
    assert LOG == ["mend"]


async def test_a_collection_keeps_what_was_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[2:])
    again = compile_graph(line(), checkpointer=saver)
    await again.ainvoke(None, CONFIG)
    again.close()
    pins, marks = Pins(paths.locks(home)), Marks(paths.evicted(home))
    async with RunStore(paths.database(home), clock=time.time) as store:
        await collect(store, SnapshotStore(paths.snapshots(home)), pins, marks, grace_s=0)
    later = compile_graph(line(), checkpointer=saver)
    assert b"b? after" in ramify.graph.read(later, before(later, "c").config, "b")


async def test_a_task_that_failed_fails_again_for_its_caller(compile_graph: Any, saver: Any, home: Path) -> None:
    """Its caller went on without it; told that it had returned, it would go another way."""

    @task
    async def fails(sandbox: Sandbox) -> str:
        LOG.append("fails")
        raise ValueError("it fails")

    @entrypoint()
    async def flow(name: str, *, previous: Any = None) -> list[str]:
        found: Any = current_sandbox()
        if previous is not None:
            return sorted(path.name for path in found.path.iterdir())
        try:
            told = await fails()
        except ValueError:
            told = "failed"
        LOG.append(f"it {told}")
        (found.path / name).write_text(told)
        return []

    app = compile_graph(flow, checkpointer=saver)
    await app.ainvoke("x", CONFIG)
    known = states(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    assert await compile_graph(flow, checkpointer=saver).ainvoke("y", CONFIG) == ["hello.txt", "x"]
    assert LOG == ["fails", "it failed"]


async def test_a_task_that_asks_has_no_answer_for_its_caller(
    compile_graph: Any, saver: Any, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @task
    async def make(name: str, sandbox: Sandbox) -> str:
        LOG.append(name)
        (sandbox.path / name).write_text(name)
        return name

    @task
    async def ask() -> str:
        return str(interrupt("go on?"))

    @entrypoint()
    async def flow(name: str) -> str:
        made = make(name)
        LOG.append(f"answered {await ask()}")
        return await made

    app = compile_graph(flow, checkpointer=saver)
    await app.ainvoke("x", CONFIG)
    lost, run = states(app)[-1], app.session.last_run_id
    app.close()
    lose(home, lost)
    LOG.clear()
    again = compile_graph(flow, checkpointer=saver)
    await asyncio.to_thread(again.session.portal.wait, state_again(again, run, lost))
    gc.collect()
    assert LOG == ["x"]
    assert "never retrieved" not in caplog.text


async def state_again(app: Any, run: Any, lost: str) -> None:
    asking = Invocation(None, addressed=True, past=app.past(CONFIG))
    await (await app.session._enter(asking, run)).snapshot(lost)
    await app.session.end(asking, None)


async def test_a_graph_that_a_task_group_runs_is_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    inner = StateGraph(State).add_sequence([("i", maker("i"))]).add_edge(START, "i").compile()

    async def call(state: State, sandbox: Sandbox) -> State:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner.ainvoke({"said": []}))
        return {"said": ["call"]}

    graph = StateGraph(State).add_sequence([("call", call), ("look", look)]).add_edge(START, "call")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    seen = (await compile_graph(graph, checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["hello.txt", "i"]
    assert LOG == ["i"]


async def test_who_is_cancelled_cancels_the_node_that_is_run_again(
    compile_graph: Any, saver: Any, home: Path
) -> None:
    waits = False
    begun, ended = threading.Event(), threading.Event()

    async def slow(state: State, sandbox: Sandbox) -> State:
        (sandbox.path / "slow").write_text("slow")
        if waits:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        return {}

    graph = StateGraph(State).add_sequence([("slow", slow), ("look", look)]).add_edge(START, "slow")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    waits = True
    again = compile_graph(graph, checkpointer=saver)
    asking = asyncio.create_task(again.ainvoke(None, CONFIG))
    await asyncio.to_thread(begun.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(ended.wait, 60), "the node goes on, and nobody wants it"
    waits = False
    assert "slow: slow" in (await again.ainvoke(None, CONFIG))["seen"]


async def test_the_checkpoints_of_a_long_thread_are_read_once(compile_graph: Any, home: Path) -> None:
    class Counted(InMemorySaver):
        listed = 0

        def list(self, *args: Any, **options: Any) -> Any:
            self.listed += 1
            return super().list(*args, **options)

    app = compile_graph(line(), checkpointer=(counted := Counted()))
    lose(home, *(await stopped(app))[1:])
    LOG.clear()
    await app.ainvoke(None, CONFIG)
    assert (LOG, counted.listed) == (["a", "b", "c"], 1)


async def test_damaged_bytes_are_made_again_once_they_are_found(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    store = SnapshotStore(paths.snapshots(home))
    (damaged,) = [top / "c" for top in store.lower_dirs(store.get(known[-1])) if (top / "c").exists()]
    damaged.chmod(0o600)
    damaged.write_text("damaged")
    assert store.fsck(repair=True).lost == (known[-1],)
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert "c: said c? after ['a', 'b', 'hello.txt']" in seen


async def test_a_thread_is_edited_where_its_files_are_lost(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[1:])
    again = compile_graph(line(), checkpointer=saver)
    ramify.graph.edit(again, CONFIG, lambda sandbox: (sandbox.path / "mine").write_text("mine"))
    seen = (await again.ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt", "mine"]


async def test_a_node_that_reads_its_threads_past_is_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    """The past was joined, and is lost, too."""

    async def z(state: State, sandbox: Sandbox) -> State:
        config = (await asyncio.to_thread(before, app, "z")).config
        (sandbox.path / "z").write_bytes(await asyncio.to_thread(ramify.graph.read, app, config, "l"))
        return {"said": ["z"]}

    app: Any = None
    graph = sides().add_node("z", z).add_edge(["l", "m", "r"], "z").add_edge("z", "look")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[1:])
    app = compile_graph(graph, checkpointer=saver)
    assert "z: said l? after ['a', 'hello.txt']" in (await app.ainvoke(None, CONFIG))["seen"]


def test_a_thread_whose_past_was_async_goes_on_without_a_loop(compile_graph: Any, saver: Any, home: Path) -> None:
    def see(state: State, sandbox: SyncSandbox) -> State:
        return {"seen": sorted(path.name for path in sandbox.path.iterdir())}

    graph = StateGraph(State).add_sequence([("a", maker("a")), ("look", see)]).add_edge(START, "a")
    app = compile_graph(graph, checkpointer=saver)
    known = asyncio.run(stopped(app))
    app.close()
    lose(home, known[-1])
    assert compile_graph(graph, checkpointer=saver).invoke(None, CONFIG)["seen"] == ["a", "hello.txt"]


async def test_a_thread_of_async_graphs_in_nodes_is_edited(compile_graph: Any, saver: Any, home: Path) -> None:
    """Whoever edits says nothing of how the thread's nodes are to be run."""
    inner = StateGraph(State).add_sequence([("i", maker("i"))]).add_edge(START, "i").compile()
    graph = StateGraph(State).add_sequence([("inner", inner), ("next", inner)]).add_edge(START, "inner")
    app = compile_graph(graph, checkpointer=saver)
    await app.ainvoke({"said": []}, CONFIG, interrupt_before=["next"])
    known = states(app)
    app.close()
    lose(home, *known[1:])
    again = compile_graph(graph, checkpointer=saver)
    edited = ramify.graph.edit(again, CONFIG, lambda sandbox: (sandbox.path / "mine").write_text("mine"))
    assert ramify.graph.read(again, edited, "i") == b"said i? after ['hello.txt']"


# What is refused


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
    assert "node 'ambient' would have to be done again" in told and "Sandbox" in told and "--from" in told
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
    assert "node 'call' would have to be done again" in await gone(compile_graph(graph, checkpointer=saver))
    assert LOG == []


async def test_other_files_are_not_taken_for_the_same(
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
    assert "node 'read' was done again, and left other files than before" in told and "copied" in told
    outside.write_text("one")
    assert "copied: one" in (await compile_graph(graph, checkpointer=saver).ainvoke(None, CONFIG))["seen"]


async def test_what_a_person_edited_is_not_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    await stopped(app)
    ramify.graph.edit(app, CONFIG, lambda sandbox: (sandbox.path / "mine").write_text("mine"))
    edited = states(app)[-1]
    app.close()
    lose(home, edited)
    assert "a person edited" in await gone(compile_graph(line(), checkpointer=saver))


async def test_the_workspace_is_not_made_again(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known)
    told = await gone(compile_graph(line(), checkpointer=saver))
    assert "the folder as the run began with it" in told and "start a new thread" in told.lower()


async def test_a_thread_whose_checkpoints_were_pruned_says_so(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    saver.prune(["t"])
    lose(home, *known[2:])
    told = await gone(compile_graph(line(), checkpointer=saver))
    assert "node 'b' would have to be done again, and no checkpoint that is kept says" in told


async def test_a_checkpointer_that_is_bound_to_a_loop_is_not_asked(compile_graph: Any, home: Path) -> None:
    class Bound(InMemorySaver):
        loop = None

    app = compile_graph(line(), checkpointer=Bound())
    lose(home, (await stopped(app))[-1])
    assert "Bound gives its checkpoints on its own event loop only" in await gone(app)


async def test_a_checkpointer_for_async_callers_only_is_named(compile_graph: Any, home: Path) -> None:
    class AsyncOnly(InMemorySaver):
        def list(self, *args: Any, **options: Any) -> Any:
            raise NotImplementedError

    app = compile_graph(line(), checkpointer=AsyncOnly())
    lose(home, (await stopped(app))[-1])
    assert "AsyncOnly gives its checkpoints to async callers only" in await gone(app)


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
    with pytest.raises(StateGone, match="node 'fails' would have to be done again, and what it does outside"):
        await compile_graph(flow, checkpointer=saver).ainvoke("y", CONFIG)
    assert LOG == []


# Which level of recovery it was


async def test_a_thread_that_was_ended_says_that_its_state_is_whole(compile_graph: Any, saver: Any) -> None:
    await stopped(app := compile_graph(line(), checkpointer=saver))
    app.close()
    heard = Heard()
    app = compile_graph(line(), checkpointer=saver, observer=heard)
    await app.ainvoke(None, CONFIG)
    assert [one.level for one in heard.recovered] == [Level.RESTORE]
    assert "is whole" in heard.recovered[0].why
    await app.ainvoke({"said": []}, CONFIG)
    assert len(heard.recovered) == 1, "a thread that was done has not come back"


async def test_a_node_that_is_tried_again_says_so(compile_graph: Any, home: Path) -> None:
    tried: list[int] = []

    async def flaky(state: State, sandbox: Sandbox) -> State:
        tried.append(len(tried))
        (sandbox.path / "made").write_text("made")
        if len(tried) % 2:
            raise OSError("once more")
        return {}

    graph = StateGraph(State).add_node("flaky", flaky, retry_policy=AGAIN)
    graph.add_node("look", look).add_edge(START, "flaky").add_edge("flaky", "look")
    heard = Heard()
    app = compile_graph(graph, checkpointer=InMemorySaver(), observer=heard)
    known = await stopped(app)
    assert [one.level for one in heard.recovered] == [Level.RETRY]
    lose(home, known[-1])
    assert "made: made" in (await app.ainvoke(None, CONFIG))["seen"]
    assert len(tried) == 4
