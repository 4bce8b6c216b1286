"""Reading a thread recomputes its lost states, and does not change the thread's status."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

import ramify.graph
from ramify import Sandbox, current_sandbox
from ramify.runtime.langgraph.errors import StateGone
from ramify.runtime.records import RunStatus
from tests.runtime.langgraph.lost_snapshots import (
    CONFIG,
    LOG,
    Heard,
    State,
    before,
    contents,
    fan,
    line,
    look,
    lose,
    maker,
    stopped,
)

pytestmark = pytest.mark.usefixtures("nothing_ran_again")


async def test_reading_a_lost_state_recomputes_it(compile_graph: Any, saver: Any, home: Path, kept: Any) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known, content = await stopped(app), contents(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    heard = Heard()
    again = compile_graph(line(), checkpointer=saver, observer=heard)
    at = before(again, "c").config
    assert b"b? after" in ramify.graph.read(again, at, "b")
    assert LOG == ["a", "b"] and "node 'a', node 'b'" in heard.recovered[0].why
    services = again.session.portal.wait(again.session.services())
    found = services.snapshots.get(ramify.graph.snapshot_of(again, at))
    assert found.content_key == content[known[2]]
    assert [change.path for change in ramify.graph.changes(again, before(again, "b").config, CONFIG)] == ["b", "c"]
    assert kept(again).runs[0].status is RunStatus.WAITING
    again.close()
    LOG.clear()
    later = compile_graph(line(), checkpointer=saver)
    assert b"b? after" in ramify.graph.read(later, at, "b")
    assert LOG == []


async def test_reading_a_state_that_cannot_be_recomputed_says_why(compile_graph: Any, saver: Any, home: Path) -> None:
    async def ambient(state: State) -> State:
        LOG.append("ambient")
        found: Any = current_sandbox()
        (found.path / "made").write_text("made")
        return {}

    nodes: Any = [("a", maker("a")), ("ambient", ambient), ("look", look)]
    graph = StateGraph(State).add_sequence(nodes).add_edge(START, "a")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    again = compile_graph(graph, checkpointer=saver)
    with pytest.raises(StateGone, match=r"node 'ambient' would have to run again.*ramify resume \w+ --from"):
        ramify.graph.read(again, CONFIG, "made")
    assert LOG == []


async def waiting(compile_graph: Any, saver: Any) -> Any:
    """Return an app whose thread waits and was begun by another app."""
    app = compile_graph(fan(), checkpointer=saver)
    await stopped(app)
    app.close()
    return compile_graph(fan(), checkpointer=saver)


async def test_a_waiting_thread_still_waits_after_its_files_were_read(
    compile_graph: Any, saver: Any, kept: Any
) -> None:
    """Its siblings are merged for the reader."""
    later = await waiting(compile_graph, saver)
    assert ramify.graph.read(later, CONFIG, "m")
    assert kept(later).runs[0].status is RunStatus.WAITING


async def test_a_waiting_thread_is_listed_as_waiting_while_it_is_read(
    compile_graph: Any, saver: Any, kept: Any
) -> None:
    """So the reading process may be killed at any time."""
    later = await waiting(compile_graph, saver)
    said: list[RunStatus] = []

    def change(sandbox: Any) -> None:
        (sandbox.path / "mine").write_text("mine")
        said.append(kept(later).runs[0].status)

    ramify.graph.edit(later, CONFIG, change)
    assert said == [RunStatus.WAITING]
    assert kept(later).runs[0].status is RunStatus.WAITING


@pytest.mark.timeout(60)
async def test_a_thread_that_is_resumed_while_it_is_read_is_running(
    compile_graph: Any, saver: Any, kept: Any
) -> None:
    later = await waiting(compile_graph, saver)
    said: list[RunStatus] = []

    def change(sandbox: Any) -> None:
        said.append(kept(later).runs[0].status)
        asyncio.run(later.ainvoke(None, CONFIG))
        said.append(kept(later).runs[0].status)

    ramify.graph.edit(later, CONFIG, change)
    assert said == [RunStatus.WAITING, RunStatus.RUNNING]  # the second one waits until the reader lets go of it
    assert kept(later).runs[0].status is RunStatus.DONE


@pytest.mark.timeout(60)
async def test_closing_the_app_during_a_read_keeps_the_threads_status(
    compile_graph: Any, saver: Any, kept: Any
) -> None:
    later = await waiting(compile_graph, saver)
    looking, closed = threading.Event(), threading.Event()

    def change(sandbox: Any) -> None:
        looking.set()
        closed.wait(2)  # the portal waits for its threads when it stops

    def edit() -> None:
        with pytest.raises(BaseException):  # noqa: B017  # cancelled, or its world is gone
            ramify.graph.edit(later, CONFIG, change)

    reader = threading.Thread(target=edit)
    reader.start()
    assert await asyncio.to_thread(looking.wait, 20)
    threading.Timer(0.5, closed.set).start()
    await asyncio.to_thread(later.close)
    await asyncio.to_thread(reader.join)
    assert kept(compile_graph(fan(), checkpointer=saver)).runs[0].status is RunStatus.WAITING


@pytest.mark.timeout(60)
async def test_a_rerun_node_may_read_lost_states(compile_graph: Any, saver: Any, home: Path) -> None:
    """The caller that runs it again holds the lock under which lost states are recomputed."""

    async def c(state: State, sandbox: Sandbox) -> State:
        LOG.append("c")
        config = (await asyncio.to_thread(before, app, "b")).config
        (sandbox.path / "c").write_bytes(await asyncio.to_thread(ramify.graph.read, app, config, "a"))
        return {}

    app: Any = None
    nodes: Any = [("a", maker("a")), ("b", maker("b")), ("c", c), ("look", look)]
    graph = StateGraph(State).add_sequence(nodes).add_edge(START, "a")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[1], known[3])
    LOG.clear()
    app = compile_graph(graph, checkpointer=saver)
    assert "c: said a? after ['hello.txt']" in (await app.ainvoke(None, CONFIG))["seen"]
    assert LOG == ["c", "a"]
