"""Apps, their threads and their loops end when they should."""

from __future__ import annotations

import asyncio
import gc
import threading
import traceback
import uuid
import weakref
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config

import ramify.graph
from ramify import current_sandbox
from ramify.fork_engine.errors import WorkspaceError
from ramify.runtime.errors import RunNotFound
from ramify.runtime.langgraph.errors import AppClosed
from ramify.runtime.langgraph.thread import graph_run
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.records import OpStatus, RunStatus
from ramify.runtime.store.run_committer import RunCommitter
from ramify.runtime.store.store_queries import StoreQueries
from tests.runtime.langgraph.app.world_graphs import CONFIG, State, at, chain, fan, files, look, writer


def test_a_thread_of_another_home_is_named(compile_graph: Any, tmp_path: Path) -> None:
    saver = InMemorySaver()
    graph = chain(("a", writer("a")))
    compile_graph(graph, checkpointer=saver).invoke({"seen": []}, CONFIG)
    elsewhere = compile_graph(graph, checkpointer=saver, home=tmp_path / "elsewhere")
    with pytest.raises(RunNotFound):
        elsewhere.invoke({"n": 1}, CONFIG)


def test_close_is_final_and_may_be_repeated(compile_graph: Any) -> None:
    app = compile_graph(chain(("a", writer("a"))))
    app.invoke({"seen": []})
    before = threading.active_count()
    app.close()
    app.close()
    assert threading.active_count() < before
    with pytest.raises(AppClosed):
        app.invoke({"seen": []})


def test_an_invocation_that_ends_as_its_app_is_closed_ends_well(
    compile_graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = compile_graph(chain(("a", writer("a"))))
    ended = []
    chunks = app.stream({"seen": []})
    assert list(next(chunks)) == ["a"]
    close = GraphRun.close

    async def slow(run: GraphRun, *args: Any) -> None:
        # the database must not close before its runs have ended
        await asyncio.wait({app.session._keeper}, timeout=0.2)
        await close(run, *args)
        ended.append(args[0])

    monkeypatch.setattr(GraphRun, "close", slow)
    app.session.portal.wait(app.session._close())  # another thread's `close` comes first, before it ends the portal
    assert list(chunks) == []
    assert ended == [RunStatus.CANCELLED]


def test_an_app_that_is_dropped_leaves_no_thread_behind(home: Path, workspace: Path) -> None:
    before = set(threading.enumerate())
    app = ramify.compile(chain(("a", writer("a"))), workspace, home=home, sandbox="copy")
    app.invoke({"seen": []})
    mine = set(threading.enumerate()) - before
    assert app.session.portal._thread in mine
    del app
    gc.collect()
    for thread in mine:
        thread.join(60)
    assert not [thread.name for thread in mine if thread.is_alive()]


def test_an_abandoned_stream_ends_its_run(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(chain(("a", writer("a")), ("b", look)))
    stream = app.stream({"seen": []})
    next(stream)
    stream.close()
    assert kept(app).runs[0].status is RunStatus.CANCELLED


@pytest.mark.linux_ns
def test_in_namespaces_too(compile_graph: Any) -> None:
    app = compile_graph(fan(writer("left"), writer("right")), checkpointer=InMemorySaver(), sandbox="namespaces")
    assert app.invoke({"seen": []}, CONFIG)["seen"][-1] == ["first", "hello.txt", "left", "right"]
    back = at(app, "left", "right")
    assert app.invoke(None, back.config)["seen"][-1] == ["first", "hello.txt", "left", "right"]
    assert set(files(app, back.config)) == {"first", "hello.txt"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_workspace_that_is_not_there_is_one_plain_error(
    compile_graph: Any, tmp_path: Path, asynchronous: bool
) -> None:
    app = compile_graph(chain(("look", look)), workspace=tmp_path / "none")
    with pytest.raises(WorkspaceError, match="none: No such file or directory") as caught:
        asyncio.run(app.ainvoke({})) if asynchronous else app.invoke({})
    told = "".join(traceback.format_exception(caught.value))
    assert "fork_engine/importer" not in told, told
    assert "direct cause" not in told
    assert "During" not in told


async def test_langgraphs_loop_ends_with_its_invocation(compile_graph: Any) -> None:
    """As in LangGraph, it is freed at once and not by the garbage collector."""
    loops = list[Any]()

    def node(state: State) -> State:
        call = get_config()["configurable"]["__pregel_call"]
        loops.append(weakref.ref(call.__self__._conf["__pregel_call"].keywords["schedule_task"].__self__))
        return {"n": 1}

    app = compile_graph(chain(("node", node)))
    gc.collect()
    gc.disable()
    try:
        app.invoke({})
        await app.ainvoke({})
        assert [loop() for loop in loops] == [None, None]
    finally:
        gc.enable()


async def test_an_invocation_without_a_thread_costs_four_commits_and_no_query(
    compile_graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run has a random name, so the database need not be asked; the rows of its nodes share the last commit."""
    monkeypatch.setattr(graph_run, "_LINGER_S", 600.0)  # the end must not wait for it
    app = compile_graph(chain(("a", lambda state: {"n": 1}), ("b", lambda state: {"n": state["n"] + 1})))
    commits, queries = [], []
    commit, read = RunCommitter._commit, StoreQueries._read
    await asyncio.wait_for(app.ainvoke({}), 60)
    monkeypatch.setattr(RunCommitter, "_commit", lambda *given: (commits.append(given), commit(*given))[1])
    monkeypatch.setattr(StoreQueries, "_read", lambda *given: (queries.append(given), read(*given))[1])
    assert (await asyncio.wait_for(app.ainvoke({}), 60))["n"] == 2
    assert (len(commits), len(queries)) == (4, 0), "the run is made and leased, and ended and given up"
    monkeypatch.undo()
    services = app.session.portal.wait(app.session.services())
    rows, run = app.session.portal.wait(_recorded(services.store, app.session.last_run_id))
    assert [row.status for row in rows] == [OpStatus.DONE] * 2
    assert run.status is RunStatus.DONE


async def _recorded(store: Any, run: Any) -> Any:
    return await store.ops(run), await store.run(run)


def test_worlds_take_no_ids_from_a_program_that_numbers_its_own(
    compile_graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests of graphs often put a counter in the place of `uuid.uuid4`, as LangGraph's own do."""

    def node(state: State) -> State:
        current_sandbox().run("true")
        return {"n": 1}

    counted = list[int]()
    monkeypatch.setattr(uuid, "uuid4", lambda: counted.append(1) or uuid.UUID(int=len(counted)))
    compile_graph(chain(("node", node))).invoke({})
    assert not counted
