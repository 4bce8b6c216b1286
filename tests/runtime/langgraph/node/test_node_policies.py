"""Policies for caching, errors and timeouts; stores, durability, and how much runs at once."""

from __future__ import annotations

import asyncio
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeError, NodeTimeoutError
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.pregel._retry import _TimedAttemptScope
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, TimeoutPolicy, interrupt
from pydantic import BaseModel

import ramify
from ramify import Sandbox, SyncSandbox
from ramify.runtime.records import RunStatus
from ramify.runtime.worlds.world_pool import Branch, WorldPool

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    seen: Annotated[list[list[str]], operator.add]


def names(sandbox: Any) -> list[str]:
    return sorted(path.name for path in sandbox.path.iterdir() if path.name != "hello.txt")


def look(state: State, sandbox: SyncSandbox) -> State:
    return {"seen": [names(sandbox)]}


def look_away(state: State) -> State:
    return {"seen": [["away"]]}


def only(function: Any, **options: Any) -> StateGraph[State]:
    graph = StateGraph(State).add_node("only", function, **options).add_node("look", look)
    return graph.add_edge(START, "only").add_edge("only", "look")


@pytest.mark.parametrize("of_graph", [False, True])
def test_a_cache_hit_needs_the_same_files_and_brings_its_own(
    of_graph: bool, compile_graph: Any, workspace: Path
) -> None:
    ran: list[int] = []

    def work(state: State, sandbox: SyncSandbox) -> State:
        ran.append(1)
        (sandbox.path / "made").write_text((sandbox.path / "hello.txt").read_text())
        return {"seen": [["worked"]]}

    graph = only(work, cache_policy=CachePolicy())
    app = compile_graph(graph, cache=InMemoryCache())
    assert app.invoke({"seen": []})["seen"] == [["worked"], ["made"]]
    assert app.invoke({"seen": []})["seen"] == [["worked"], ["made"]]
    assert len(ran) == 1
    (workspace / "hello.txt").write_text("changed")
    assert app.invoke({"seen": []})["seen"] == [["worked"], ["made"]]
    assert len(ran) == 2  # the same input, other files
    app.clear_cache()
    app.invoke({"seen": []})
    assert len(ran) == 3


def test_a_graph_in_a_node_clears_its_own_results(compile_graph: Any) -> None:
    ran: list[int] = []

    def work(state: State) -> State:
        ran.append(1)
        return {"seen": [["worked"]]}

    sub = StateGraph(State).add_node("work", work, cache_policy=CachePolicy()).add_edge(START, "work")
    within = sub.compile(cache=InMemoryCache())
    app = compile_graph(only(within), cache=within.cache)
    for cleared in (0, 0, 1):
        if cleared:
            within.clear_cache()
        app.invoke({"seen": []})
    assert len(ran) == 2


class Fields(BaseModel):
    name: str = "unset"
    note: str | None = None


@pytest.mark.parametrize(
    "wrap", [lambda model: model, lambda model: Command(update=model), lambda m: [Command(update=m)]]
)
def test_a_cached_model_writes_only_the_fields_that_were_set(wrap: Any, compile_graph: Any) -> None:
    graph = StateGraph(Fields).add_node("only", lambda state: wrap(Fields(name="new")), cache_policy=CachePolicy())
    app = compile_graph(graph.add_edge(START, "only"), cache=InMemoryCache())
    plain = graph.compile()
    given = {"name": "given", "note": "old"}
    assert [app.invoke(given), app.invoke(given)] == [plain.invoke(given)] * 2


def test_a_cached_task_needs_the_same_files_and_brings_its_own(compile_graph: Any, workspace: Path) -> None:
    ran: list[str] = []

    @task(cache_policy=CachePolicy())
    def work(name: str, *, sandbox: SyncSandbox) -> str:
        ran.append(name)
        (sandbox.path / name).write_text((sandbox.path / "hello.txt").read_text())
        return name

    @task
    def plain(name: str) -> str:
        ran.append(name)
        return name

    cache = InMemoryCache[Any]()

    @entrypoint(cache=cache)
    def flow(number: int, *, sandbox: SyncSandbox) -> list[Any]:
        return [work("one").result(), work(name="two").result(), plain("three").result(), names(sandbox)]

    app = compile_graph(flow)
    want = ["one", "two", "three", ["one", "two"]]
    assert [app.invoke(1), app.invoke(2)] == [want, want]
    assert ran == ["one", "two", "three", "three"]
    (workspace / "hello.txt").write_text("changed")
    assert app.invoke(3) == want
    assert ran[4:] == ["one", "two", "three"]  # the same arguments, other files
    work.clear_cache(cache)
    assert app.invoke(4) == want
    assert ran[7:] == ["one", "two", "three"]


def test_a_cached_result_is_streamed_as_such(compile_graph: Any) -> None:
    @task(cache_policy=CachePolicy())
    def double(number: int) -> int:
        return 2 * number

    def node(state: State) -> State:
        return {"seen": [[str(double(3).result())]]}

    def both(graph: Any, **options: Any) -> list[Any]:
        modes = ["updates", "values", "tasks"]
        chunks = [list(graph.stream({"seen": []}, stream_mode=modes, **options)) for _ in range(2)]
        return [[mode, {**data, "id": ""} if mode == "tasks" else data] for run in chunks for mode, data in run]

    graph = StateGraph(State).add_node("node", node).add_node("kept", look_away, cache_policy=CachePolicy())
    graph.add_edge(START, "node").add_edge("node", "kept")
    seen = both(compile_graph(graph, cache=InMemoryCache()))
    assert seen == both(graph.compile(cache=InMemoryCache()))
    assert [data for _, data in seen if "__metadata__" in data] == [
        {"double": 6, "__metadata__": {"cached": True}},
        {"kept": {"seen": [["away"]]}, "__metadata__": {"cached": True}},
    ]


async def test_tasks_take_the_cache_policy_of_their_entrypoint(compile_graph: Any) -> None:
    ran: list[str] = []

    @task
    async def work(name: str) -> str:
        ran.append(name)
        return name

    @entrypoint(cache=InMemoryCache(), cache_policy=CachePolicy())
    async def flow(number: int) -> list[Any]:
        return [number, await work("one")]

    app = compile_graph(flow)
    assert [await app.ainvoke(number) for number in (1, 2, 2)] == [[1, "one"], [2, "one"], [2, "one"]]
    assert ran == ["one"]


def test_an_error_handler_finds_the_world_without_what_failed(compile_graph: Any) -> None:
    def fails(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "half").touch()
        raise ValueError("no")

    def handle(state: State, error: NodeError, sandbox: SyncSandbox) -> State:
        seen = names(sandbox)
        (sandbox.path / "handled").touch()
        return {"seen": [[str(error.error)], seen]}

    app = compile_graph(only(fails, error_handler=handle), checkpointer=InMemorySaver())
    graph_seen = app.invoke({"seen": []}, CONFIG)["seen"]
    assert graph_seen[:2] == [["no"], []]


async def test_a_node_that_runs_out_of_time_leaves_nothing(compile_graph: Any) -> None:
    async def slow(state: State, sandbox: Sandbox) -> State:
        (sandbox.path / "half").touch()
        await asyncio.sleep(30)
        return {}

    app = compile_graph(only(slow, timeout=0.5), checkpointer=InMemorySaver())
    with pytest.raises(NodeTimeoutError):
        await app.ainvoke({"seen": []}, CONFIG)
    assert app.get_state(CONFIG).next == ("only",)


def test_nodes_use_the_graphs_store(compile_graph: Any) -> None:
    store = InMemoryStore()

    def remember(state: State, *, store: BaseStore) -> State:
        store.put(("a",), "b", {"c": 1})
        return {}

    compile_graph(only(remember), store=store).invoke({"seen": []})
    assert store.get(("a",), "b").value == {"c": 1}  # type: ignore[union-attr]


async def test_durability_exit_is_raised_to_sync(compile_graph: Any) -> None:
    def touch(state: State, sandbox: SyncSandbox) -> None:
        (sandbox.path / "made").touch()

    saver = InMemorySaver()
    app = compile_graph(only(touch), checkpointer=saver)
    await app.ainvoke({"seen": []}, CONFIG, durability="exit")
    app.invoke({"seen": []}, {"configurable": {"thread_id": "2"}}, durability="exit")
    with pytest.warns(DeprecationWarning, match="checkpoint_during"):
        app.invoke({"seen": []}, {"configurable": {"thread_id": "3"}}, checkpoint_during=False)
    assert [len(list(saver.list({"configurable": {"thread_id": thread}}))) for thread in "123"] == [4, 4, 4]


@pytest.mark.parametrize("is_async", [False, True])
async def test_one_at_a_time_is_no_deadlock(is_async: bool, compile_graph: Any) -> None:
    graph = StateGraph(State).add_node("look", look)
    for name in "abc":
        graph.add_node(name, look).add_edge(START, name).add_edge(name, "look")
    app = compile_graph(graph, checkpointer=InMemorySaver())
    config = {**CONFIG, "max_concurrency": 1}
    given: Any = {"seen": []}
    state = await app.ainvoke(given, config) if is_async else await asyncio.to_thread(app.invoke, given, config)
    assert state["seen"] == [[]] * 4


@pytest.mark.parametrize("is_async", [False, True])
async def test_one_sibling_asks_while_the_other_has_finished(is_async: bool, compile_graph: Any, kept: Any) -> None:
    ran: list[str] = []

    def done(state: State, sandbox: SyncSandbox) -> State:
        ran.append("done")
        (sandbox.path / "done").touch()
        return {"seen": [["done"]]}

    def asks(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / interrupt("name?")).touch()
        return {"seen": [["asks"]]}

    graph = StateGraph(State).add_node("done", done).add_node("asks", asks).add_node("look", look)
    graph.add_edge(START, "done").add_edge(START, "asks").add_edge(["done", "asks"], "look")
    app = compile_graph(graph, checkpointer=InMemorySaver())

    async def invoke(value: Any) -> Any:
        return await app.ainvoke(value, CONFIG) if is_async else await asyncio.to_thread(app.invoke, value, CONFIG)

    await invoke({"seen": []})
    assert kept(app).runs[0].status is RunStatus.WAITING
    assert (await invoke(Command(resume="bob")))["seen"] == [["asks"], ["done"], ["bob", "done"]]
    assert ran == ["done"]
    assert kept(app).runs[0].status is RunStatus.DONE


def test_a_write_before_an_interrupt_is_there_once(compile_graph: Any) -> None:
    def asks(state: State, sandbox: SyncSandbox) -> State:
        with (sandbox.path / "log").open("a") as file:
            file.write("line\n")
        interrupt("go on?")
        return {"seen": [(sandbox.path / "log").read_text().split()]}

    app = compile_graph(only(asks), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    assert app.invoke(Command(resume=True), CONFIG)["seen"][0] == ["line"]


@task
async def in_world(sandbox: Sandbox) -> list[str]:
    return names(sandbox)


async def takes(state: State, sandbox: Sandbox) -> State:
    return {"seen": [names(sandbox)]}


async def asks_later(state: State) -> State:
    sandbox: Any = ramify.current_sandbox()
    await sandbox.run("true")
    return {"seen": [names(sandbox)]}


async def calls_task(state: State) -> State:
    return {"seen": [await in_world()]}


async def calls_graph(state: State) -> State:
    return {
        "seen": (await StateGraph(State).add_node(takes).add_edge(START, "takes").compile().ainvoke(state))["seen"]
    }


@pytest.mark.parametrize("works", [takes, asks_later, calls_task, calls_graph])
async def test_a_node_is_not_idle_while_its_world_starts(
    works: Any, compile_graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[int] = []
    blocks = works is asks_later  # its event loop waits too, so it beats when the world has started

    async def slow_start(pool: WorldPool, branch: Branch) -> Any:
        while len(beats) < 3 and not blocks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return await acquire(pool, branch)

    def heard(scope: Any) -> None:
        beats.append(1)
        touch(scope)

    acquire, touch = WorldPool.acquire, _TimedAttemptScope.touch
    monkeypatch.setattr(WorldPool, "acquire", slow_start)
    monkeypatch.setattr(_TimedAttemptScope, "touch", heard)
    app = compile_graph(only(works, timeout=TimeoutPolicy(idle_timeout=60)), checkpointer=InMemorySaver())
    async with asyncio.timeout(60):
        assert (await app.ainvoke({"seen": []}, CONFIG))["seen"] == [[], []]
    assert beats


@pytest.mark.parametrize("has_world", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_finished_error_handler_is_not_run_again_on_resume(
    is_async: bool, has_world: bool, compile_graph: Any
) -> None:
    """LangGraph's issue 9002."""
    handled: list[int] = []

    def fails(state: State) -> State:
        raise ValueError("no")

    def handle(state: State, error: NodeError, sandbox: SyncSandbox) -> State:
        handled.append(1)
        (sandbox.path / "handled").touch()
        return {}

    def handle_without(state: State, error: NodeError) -> State:
        handled.append(1)
        return {}

    def asks(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / interrupt("name?")).touch()
        return {}

    graph = StateGraph(State).add_node("asks", asks)
    graph.add_node("fails", fails, error_handler=handle if has_world else handle_without)
    graph.add_node("look", look, defer=True).add_edge(START, "fails").add_edge(START, "asks").add_edge("asks", "look")
    app = compile_graph(graph, checkpointer=InMemorySaver())

    async def invoke(value: Any) -> Any:
        return await app.ainvoke(value, CONFIG) if is_async else await asyncio.to_thread(app.invoke, value, CONFIG)

    await invoke({"seen": []})
    assert (await invoke(Command(resume="bob")))["seen"] == [["bob", "handled"] if has_world else ["bob"]]
    assert len(handled) == 1
