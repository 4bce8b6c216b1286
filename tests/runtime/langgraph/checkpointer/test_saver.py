"""The saver on disk behaves as LangGraph's own in memory, and its threads outlive the process."""

from __future__ import annotations

import operator
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import postgres
import pytest
from langgraph.checkpoint.base import ERROR, BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base import id as ids
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from ramify.fork_engine import crash_points
from ramify.runtime.langgraph.checkpointer import Saver, checkpoint_reader
from ramify.runtime.langgraph.checkpointer.maintenance import thread_id
from ramify.runtime.langgraph.thread import thread_fork

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    big: str


def graph(saver: BaseCheckpointSaver[Any]) -> Any:
    def ask(state: State) -> State:
        return {"log": [interrupt("?")]}

    built = StateGraph(State)
    for name in ("a", "b", "c"):
        built.add_node(name, lambda state, name=name: {"log": [name]})
    built.add_node("ask", ask).add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge(["b", "c"], "ask")
    return built.compile(checkpointer=saver)


@pytest.fixture
def saver(address: str) -> Iterator[Saver]:
    with Saver(address) as opened:
        yield opened


def history(app: Any, config: Any = CONFIG) -> list[Any]:
    return [
        (state.values, state.next, state.metadata, [task.name for task in state.tasks], len(state.interrupts))
        for state in app.get_state_history(config)
    ]


def scenario(app: Any) -> list[Any]:
    app.invoke({"log": [], "big": "x" * 1000}, CONFIG)
    app.invoke(Command(resume="yes"), CONFIG)
    back = next(state for state in app.get_state_history(CONFIG) if set(state.next) == {"b", "c"})
    app.invoke(None, back.config)
    app.update_state(CONFIG, {"log": ["updated"]}, as_node="c")
    return history(app)


def test_it_stores_what_the_saver_in_memory_stores(saver: Saver) -> None:
    assert scenario(graph(saver)) == scenario(graph(InMemorySaver()))


async def test_async_calls_do_the_same(saver: Saver) -> None:
    async def over(app: Any) -> list[Any]:
        await app.ainvoke({"log": []}, CONFIG)
        await app.ainvoke(Command(resume="yes"), CONFIG)
        return [(state.values, state.next) async for state in app.aget_state_history(CONFIG)]

    assert await over(graph(saver)) == await over(graph(InMemorySaver()))
    await saver.adelete_thread("1")
    assert await saver.aget_tuple(CONFIG) is None


def test_another_process_finds_it(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": []}, CONFIG)
    with Saver(saver.address) as again:
        assert history(graph(again)) == history(app)
        assert graph(again).invoke(Command(resume="late"), CONFIG)["log"][-1] == "late"


@pytest.mark.parametrize("at", [0, -1], ids=["newest", "oldest"])
def test_a_thread_goes_on_in_a_process_whose_clock_is_behind(
    saver: Saver, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints still sort as newer. LangGraph's ids remember the time within one process only."""

    def begun(app: Any) -> Any:
        app.invoke({"log": []}, CONFIG, durability="sync")
        return list(app.get_state_history(CONFIG))[at].config

    def gone_on(app: Any, config: Any) -> list[Any]:
        app.invoke({"log": ["late"]}, config, durability="sync")
        return history(app)

    steady = graph(InMemorySaver())
    expected = gone_on(steady, begun(steady))
    config, now = begun(graph(saver)), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 10**16)
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)
    with Saver(saver.address) as again:
        assert gone_on(graph(again), config) == expected


def test_branches_of_a_thread_keep_their_own_values(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": []}, CONFIG)
    back = next(state for state in app.get_state_history(CONFIG) if set(state.next) == {"b", "c"})
    left, right = (app.update_state(back.config, {"log": [side]}, as_node="a") for side in ("left", "right"))
    assert app.get_state(left).values["log"] == ["a", "left"]
    assert app.get_state(right).values["log"] == ["a", "right"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda saver, last: saver.list(CONFIG, limit=2),
        lambda saver, last: saver.list(CONFIG, before=last),
        lambda saver, last: saver.list(CONFIG, filter={"source": "loop", "step": 1}),
        lambda saver, last: saver.list(None, filter={"source": "input"}),
        lambda saver, last: saver.list({"configurable": {"thread_id": "none"}}),
    ],
)
def test_listing(ask: Callable[..., Any], saver: Saver) -> None:
    def steps(saver: BaseCheckpointSaver[Any]) -> list[int]:
        graph(saver).invoke({"log": []}, CONFIG)
        last = saver.get_tuple(CONFIG)
        assert last is not None
        return [one.metadata["step"] for one in ask(saver, last.config)]

    assert steps(saver) == steps(InMemorySaver())


def test_deleting_a_thread_leaves_the_others(saver: Saver) -> None:
    other: Any = {"configurable": {"thread_id": "2"}}
    app = graph(saver)
    app.invoke({"log": []}, CONFIG)
    app.invoke({"log": []}, other)
    saver.delete_thread("1")
    assert saver.get_tuple(CONFIG) is None
    assert list(saver.list(CONFIG)) == []
    assert app.get_state(other).next == ("ask",)
    assert graph(saver).invoke({"log": ["anew"]}, CONFIG)["log"] == ["anew", "a", "b", "c"]


def test_storage_grows_with_what_is_new(tmp_path: Path) -> None:
    steps, size = 200, 2_000
    texts = [random.Random(at).randbytes(size // 2).hex() for at in range(steps)]

    def talk(state: State) -> State:
        return {"log": [texts[len(state["log"])]]}

    built = StateGraph(State).add_node("talk", talk).add_edge(START, "talk")
    built.add_conditional_edges("talk", lambda state: "talk" if len(state["log"]) < steps else "__end__")
    config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 1000}
    with Saver(tmp_path / "threads.db") as saver:
        built.compile(checkpointer=saver).invoke({"log": []}, config)
    with Saver(tmp_path / "threads.db") as again:
        found = again.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"]["log"] == texts
        assert [len(one.checkpoint["channel_values"].get("log", [])) for one in again.list(config)][:3] == [
            200,
            199,
            198,
        ]
    stored = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert stored < 1.5 * steps * size


def test_more_values_than_one_statement_holds(saver: Saver) -> None:
    """Some values are equal and some exist already: each has one row, and all are read back."""
    written = [("log", f"value {at % 50}") for at in range(90)]
    checkpoint: Any = {**empty_checkpoint(), "id": "1"}
    saver.put({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}, checkpoint, {}, {})
    place: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "1"}}
    saver.put_writes(place, written[:10], "first")
    with Saver(saver.address) as other:  # it does not know what exists
        other.put_writes(place, written, "second")
    found = saver.get_tuple(place)
    assert found is not None
    assert [(channel, value) for task, channel, value in found.pending_writes or () if task == "second"] == written


def test_a_task_may_write_twice_in_one_transaction(saver: Saver) -> None:
    """The first writes stay; a write that says how the task ended replaces an earlier one."""
    checkpoint: Any = {**empty_checkpoint(), "id": "1"}
    place: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "1"}}
    saver.put({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}, checkpoint, {}, {})
    saver.put_writes(place, [("log", "kept")], "task")
    saver.put_writes(place, [("log", "late"), ("big", "new")], "task")
    saver.put_writes(place, [(ERROR, "one")], "task")
    saver.put_writes(place, [(ERROR, "two")], "task")
    found = saver.get_tuple(place)
    assert found is not None
    assert {(channel, value) for _, channel, value in found.pending_writes or ()} == {
        ("log", "kept"),
        ("big", "new"),
        (ERROR, "two"),
    }


def test_maintenance_sees_work_submitted_just_before(saver: Saver) -> None:
    checkpoint: Any = {**empty_checkpoint(), "id": "1"}
    place: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "1"}}
    saver.put({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}, checkpoint, {}, {})
    saver.put_writes(place, [("log", "soon gone")], "task")  # it still lingers
    saver.delete_thread("1")
    saver.put({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}, checkpoint, {}, {})
    found = saver.get_tuple(place)
    assert found is not None
    assert not found.pending_writes


@pytest.mark.postgres
def test_a_connection_that_was_cut_is_made_anew(postgres_server: str) -> None:
    import psycopg

    top: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    address = postgres.new_database(postgres_server)
    with Saver(address) as saver:
        saver.put(top, {**empty_checkpoint(), "id": "1"}, {}, {})
        with psycopg.connect(address) as other:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            other.execute(f"{others} AND pid <> pg_backend_pid()")
        saver.put(top, {**empty_checkpoint(), "id": "2"}, {}, {})
        assert [found.checkpoint["id"] for found in saver.list(CONFIG)] == ["2", "1"]


@pytest.mark.postgres
@pytest.mark.parametrize("where", ["saver's transaction begun", "saver's rows written", "saver's batch committed"])
def test_a_server_that_goes_away_changes_nothing(
    postgres_server: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if the answer to a commit is lost: the commit is done again."""
    import psycopg

    address = postgres.new_database(postgres_server)
    passed = []

    def at(name: str) -> None:
        passed.append(name)
        if name != where or passed.count(name) % 3 != 1:
            return
        with psycopg.connect(address) as other:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            other.execute(f"{others} AND pid <> pg_backend_pid()")
        if name == "saver's batch committed":
            raise OperationalError("COMMIT", None, psycopg.OperationalError(), connection_invalidated=True)

    monkeypatch.setattr(crash_points, "at", at)
    with Saver(address) as saver:
        assert scenario(graph(saver)) == scenario(graph(InMemorySaver()))
    assert passed.count(where) > 3


@pytest.mark.parametrize("name", ["a\0b", "not UTF-8: \udc80", "\x01marked", "x" * 10_000, ""], ids=ascii)
def test_threads_and_tasks_have_any_name(saver: Saver, name: str) -> None:
    checkpoint: Any = {**empty_checkpoint(), "channel_values": {name: "value"}}
    at = saver.put({"configurable": {"thread_id": name, "checkpoint_ns": name}}, checkpoint, {"run_id": name}, {})  # type: ignore[typeddict-unknown-key]
    saver.put_writes(at, [(name, "written")], task_id=name, task_path=name)
    (found,) = saver.list({"configurable": {"thread_id": name}})
    assert found.config["configurable"]["thread_id"] == found.config["configurable"]["checkpoint_ns"] == name
    assert found.checkpoint["channel_values"] == {name: "value"}
    assert found.pending_writes == [(name, name, "written")]


@pytest.mark.postgres
def test_several_open_an_empty_database_at_once(postgres_server: str) -> None:
    address = postgres.new_database(postgres_server)
    together = threading.Barrier(4)

    def first(_: int) -> None:
        together.wait()
        Saver(address).close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(first, range(4)))


def test_a_checkpoint_is_read_by_two_statements(tmp_path: Path) -> None:
    """A fork of a thread reads two checkpoints and writes one: most of its cost is statements."""
    with Saver(tmp_path / "threads.db") as saver:
        app = graph(saver)
        app.invoke({"log": [], "big": "x" * 10_000}, CONFIG)
        old = next(state for state in app.get_state_history(CONFIG) if set(state.next) == {"b", "c"})
        said: list[str] = []
        with saver._engine.connect() as connection:
            own: Any = connection.connection.driver_connection
        own.set_trace_callback(said.append)
        found = saver.get_tuple(old.config)
    assert found is not None
    assert [len(found.checkpoint["channel_values"]["big"]), len(found.pending_writes or ())] == [10_000, 4]
    assert [line.split()[0] for line in said] == ["BEGIN", "SELECT", "WITH", "ROLLBACK"], said


def test_a_checkpoint_is_read_whole_while_another_process_prunes(
    saver: Saver, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = graph(saver)
    app.invoke({"log": [], "big": "x" * 1000}, CONFIG)
    old = next(state for state in app.get_state_history(CONFIG) if set(state.next) == {"b", "c"})
    look, passed = checkpoint_reader.closure, []

    def between(connection: Any, wanted: Any) -> Any:
        if not passed:
            passed.append(1)
            with Saver(address) as other:
                other.prune(["1"], strategy="delete")
        return look(connection, wanted)

    monkeypatch.setattr(checkpoint_reader, "closure", between)
    found = saver.get_tuple(old.config)
    assert found is not None
    assert found.checkpoint["channel_values"]["log"] == ["a"]
    assert [saver.get_tuple(old.config), len(passed)] == [None, 1]


@pytest.mark.postgres
def test_a_read_retries_while_the_server_is_gone(postgres_server: str) -> None:
    import psycopg

    address = postgres.new_database(postgres_server)
    refused = []

    def at_last(*_: object) -> None:
        if len(refused) < 2:
            refused.append(1)
            raise psycopg.OperationalError("connection refused")

    with Saver(address) as saver:
        graph(saver).invoke({"log": []}, CONFIG)
        with psycopg.connect(address) as other:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            other.execute(f"{others} AND pid <> pg_backend_pid()")
        event.listen(saver._engine, "do_connect", at_last)
        found = saver.get_tuple(CONFIG)
    assert found is not None
    assert len(refused) == 2


@pytest.mark.postgres
def test_a_superstep_is_one_statement_on_a_server(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no BEGIN before it and no COMMIT after it: the statement is a transaction by itself."""
    import psycopg

    sent: list[str] = []
    execute = psycopg.Cursor.execute

    def heard(own: Any, sql: Any, *rest: Any, **options: Any) -> Any:
        sent.append(str(sql))
        return execute(own, sql, *rest, **options)

    def count(state: State) -> State:
        return {"log": [f"{len(state['log'])}" * 10]}

    monkeypatch.setattr(psycopg.Cursor, "execute", heard)
    with Saver.open(postgres.new_database(postgres_server)) as saver:
        made = StateGraph(State).add_node("count", count).add_edge(START, "count")
        made.add_conditional_edges("count", lambda state: "count" if len(state["log"]) % 20 else "__end__")
        app = made.compile(checkpointer=saver)
        for _ in range(2):
            app.invoke({"log": []}, CONFIG)
        sent.clear()
        app.invoke({"log": []}, {"recursion_limit": 50, **CONFIG}, durability="sync")
    steps = [sql for sql in sent if sql.startswith("WITH put_0 AS (INSERT INTO ramify_values")]
    assert len(steps) >= 20
    assert len(sent) <= len(steps) + 12  # the thread is looked up before the first superstep


def test_a_task_writes_more_than_one_statement_takes(saver: Saver) -> None:
    """A node that sends to thousands makes such a task. A server accepts 65,535 parameters at once."""
    at = saver.put({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
    saver.put_writes(at, [("log", number) for number in range(7000)], "task")
    found = saver.get_tuple(at)
    assert found is not None
    assert [value for _, _, value in found.pending_writes or ()] == list(range(7000))


def test_an_empty_checkpoint_id_means_the_latest(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": []}, CONFIG)
    empty: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": ""}}
    assert saver.get_tuple(empty) == saver.get_tuple(CONFIG)
    assert len(list(saver.list(empty))) == len(list(saver.list(CONFIG, before=empty))) == len(history(app))
    assert app.invoke(Command(resume="yes"), empty)["log"] == ["a", "b", "c", "yes"]


async def test_the_walk_to_the_ancestors_ends_where_parents_form_a_cycle(saver: Saver) -> None:
    for id, parent in (("1", "2"), ("2", "1")):
        config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": parent}}
        saver.put(config, {**empty_checkpoint(), "id": id}, {}, {})
    for found in (
        saver.get_delta_channel_history(config=CONFIG, channels=["log"]),
        await saver.aget_delta_channel_history(config=CONFIG, channels=["log"]),
    ):
        assert found["log"] == {"writes": []}


def test_a_prune_and_a_fork_end_where_parents_form_a_cycle(saver: Saver) -> None:
    since: Any = {"counters_since_delta_snapshot": {"log": [1, 1]}}
    for id, parent in (("1", "2"), ("2", "1")):
        config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": parent}}
        saver.put(config, {**empty_checkpoint(), "id": id}, since, {})
    saver.prune(["1"])
    assert {found.checkpoint["id"] for found in saver.list(CONFIG)} == {"1", "2"}
    with saver._engine.connect() as connection:
        thread = thread_id(connection, "1")
        assert thread is not None
        assert [row.id for row in thread_fork._kept(connection, thread, "1")] == ["1", "2"]


async def test_a_dotted_filter_key_names_metadata_inside(saver: Saver) -> None:
    await saver.setup()
    metadata: Any = {"user": {"access-level": "nested"}}
    saver.put({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}, empty_checkpoint(), metadata, {})
    assert len(list(saver.list(None, filter={"user.access-level": "nested"}))) == 1
    assert not list(saver.list(None, filter={"user.name": "nested"}))
