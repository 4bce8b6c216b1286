"""Cancelling a `@task` in any of the ways its caller can reaches its code, and drops its files."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph

from ramify import current_sandbox
from ramify.runtime.user_code.scope import is_in_a_run

CONFIG: Any = {"configurable": {"thread_id": "1"}}
LOG: list[Any] = []
LONG_S = 20.0  # nothing waits this long unless a cancel is lost
SOON_S = 0.2


class State(TypedDict, total=False):
    found: list[Any]


@pytest.fixture(autouse=True)
def nothing_was_logged() -> None:
    LOG.clear()


@task
async def hang(name: str) -> str:
    leave(name)
    LOG.append(f"{name} began")
    try:
        await asyncio.sleep(LONG_S)
    except asyncio.CancelledError:
        LOG.append(f"{name} was cancelled")
        raise
    LOG.append(f"{name} ended")
    return name


@task
async def fails(name: str) -> str:
    await begun("a")
    raise ValueError(name)


@task
async def outer(name: str) -> str:
    return await hang(name)


def leave(name: str) -> None:
    if is_in_a_run():
        (current_sandbox().path / name).write_text(name)


async def begun(*names: str) -> None:
    while not all(f"{name} began" in LOG for name in names):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def over(*names: str) -> None:
    """Return when the cancelled tasks have been told. A task that was not told ends at last, and the log says so."""
    while not all(f"{name} was cancelled" in LOG or f"{name} ended" in LOG for name in names):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def by_wait_for() -> None:
    future = hang("a")
    await begun("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(future, SOON_S)


async def by_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            future = hang("a")
            await begun("a")
            limit.reschedule(asyncio.get_running_loop().time())
            await future


async def by_cancel() -> None:
    future = hang("a")
    await begun("a")
    assert future.cancel() and not future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await future
    assert future.cancelled()


async def by_cancel_at_once() -> None:
    future = hang("a")
    assert future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await future
    LOG.append("a was cancelled")  # it never began


async def by_cancelling_who_awaits_it() -> None:
    async def awaits() -> str:
        return await hang("a")

    waiting = asyncio.create_task(awaits())
    await begun("a")
    waiting.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await waiting


async def by_wait() -> None:
    futures = [asyncio.ensure_future(hang(name)) for name in "ab"]
    await begun("a", "b")
    _, pending = await asyncio.wait(futures, timeout=SOON_S)
    assert pending == set(futures)
    for one in pending:
        one.cancel()
    gathered = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(one) for one in gathered] == [asyncio.CancelledError] * 2


async def by_first_completed() -> None:
    async def soon() -> None:
        await begun("a")

    futures = {asyncio.ensure_future(hang("a")), asyncio.ensure_future(soon())}
    _, pending = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for one in pending:
        one.cancel()


async def by_task_group() -> None:
    async def awaits(future: Awaitable[Any]) -> Any:
        return await future

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(awaits(hang("a")))
            group.create_task(awaits(fails("no")))


async def by_gather() -> None:
    gathered = asyncio.gather(hang("a"), hang("b"))
    await begun("a", "b")
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered


async def by_the_task_around_it() -> None:
    future = outer("a")
    await begun("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(future, SOON_S)


WAYS = [
    by_wait_for,
    by_timeout,
    by_cancel,
    by_cancel_at_once,
    by_cancelling_who_awaits_it,
    by_wait,
    by_first_completed,
    by_task_group,
    by_gather,
    by_the_task_around_it,
]


def in_a_node(way: Callable[[], Awaitable[None]]) -> tuple[Any, Any]:
    async def node(state: State) -> State:
        return {"found": await called(way)}

    return StateGraph(State).add_node("node", node).add_edge(START, "node"), {"found": []}


def in_an_entrypoint(way: Callable[[], Awaitable[None]]) -> tuple[Any, Any]:
    @entrypoint(checkpointer=InMemorySaver())
    async def app(given: dict[str, Any]) -> State:
        return {"found": await called(way)}

    return app, {"found": []}


async def called(way: Callable[[], Awaitable[None]]) -> list[Any]:
    await way()
    cancelled = ("a", "b") if way in (by_wait, by_gather) else ("a",)
    await over(*cancelled)
    LOG.append([one.name for one in sorted(current_sandbox().path.iterdir())] if is_in_a_run() else ["hello.txt"])
    return list(LOG)


@pytest.mark.parametrize("make", [in_a_node, in_an_entrypoint])
@pytest.mark.parametrize("way", WAYS)
async def test_a_cancel_reaches_the_task(
    way: Callable[[], Awaitable[None]], make: Any, compile_graph: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def seen(app: Any, given: Any) -> list[Any]:
        LOG.clear()
        return sorted(map(str, (await app.ainvoke(given, CONFIG))["found"]))

    graph, given = make(way)
    plain = await seen(graph.compile() if hasattr(graph, "compile") else graph, given)
    noise: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
    app = compile_graph(make(way)[0], checkpointer=InMemorySaver())
    assert await seen(app, given) == plain
    assert "a ended" not in plain
    await asyncio.to_thread(app.close)
    assert not noise
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("make", [in_a_node, in_an_entrypoint])
async def test_cancelling_the_invocation_reaches_the_task_without_noise(
    make: Any, compile_graph: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def waits() -> None:
        await hang("a")

    noise: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
    graph, given = make(waits)
    app = compile_graph(graph, checkpointer=InMemorySaver())
    invoked = asyncio.create_task(app.ainvoke(given, CONFIG))
    await begun("a")
    invoked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await invoked
    await over("a")
    assert LOG == ["a began", "a was cancelled"]
    await asyncio.to_thread(app.close)
    assert not noise
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_cancel_while_the_node_waits_for_what_it_left_running(compile_graph: Any) -> None:
    """The node has returned, but is not over before its task is."""

    async def node(state: State) -> State:
        hang("a")
        return {}

    noise: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
    app = compile_graph(StateGraph(State).add_node("node", node).add_edge(START, "node"))
    invoked = asyncio.create_task(app.ainvoke({"found": []}))
    await begun("a")
    invoked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await invoked
    await over("a")
    assert LOG == ["a began", "a was cancelled"]
    await asyncio.to_thread(app.close)
    assert not noise


async def test_a_task_that_is_shielded_goes_on(compile_graph: Any) -> None:
    is_open = asyncio.Event()

    @task
    async def waits(name: str) -> str:
        leave(name)
        await is_open.wait()
        return name

    async def node(state: State) -> State:
        future = waits("kept")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), SOON_S)
        is_open.set()
        return {"found": [await future, sorted(path.name for path in current_sandbox().path.iterdir())]}

    app = compile_graph(StateGraph(State).add_node("node", node).add_edge(START, "node"))
    assert (await app.ainvoke({"found": []}))["found"] == ["kept", ["hello.txt", "kept"]]


def test_a_future_of_a_synchronous_node_is_cancelled_as_in_a_plain_graph(compile_graph: Any) -> None:
    """Code in a thread keeps running. Its caller does not wait for it and gets none of its files."""

    def build() -> tuple[StateGraph[State], threading.Event]:
        is_open, runs = threading.Event(), threading.Event()

        @task
        def waits(name: str) -> str:
            leave(name)
            runs.set()
            is_open.wait()
            return name

        def node(state: State) -> State:
            future = waits("dropped")
            runs.wait()
            with pytest.raises(concurrent.futures.TimeoutError):
                future.result(timeout=0)
            found: list[Any] = [future.cancel(), future.cancel(), future.cancelled(), future.done()]
            with pytest.raises(concurrent.futures.CancelledError):
                future.result()
            is_open.set()
            if is_in_a_run():
                assert not (current_sandbox().path / "dropped").exists()
            return {"found": found}

        return StateGraph(State).add_node("node", node).add_edge(START, "node"), is_open

    plain, _ = build()
    ours, _ = build()
    assert compile_graph(ours).invoke({"found": []}) == plain.compile().invoke({"found": []})


def test_a_result_is_not_cancelled_any_more(compile_graph: Any) -> None:
    @task
    def quick(name: str) -> str:
        return name

    def node(state: State) -> State:
        future = quick("kept")
        return {"found": [future.result(), future.cancel(), future.cancelled(), future.result()]}

    app = compile_graph(StateGraph(State).add_node("node", node).add_edge(START, "node"))
    assert app.invoke({"found": []})["found"] == ["kept", False, False, "kept"]
