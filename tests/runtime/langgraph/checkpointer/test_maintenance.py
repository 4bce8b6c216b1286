"""Copies and prunes: what is kept still works, and everything else is deleted from the disk."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import postgres
import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from sqlalchemy import func, select

from ramify import Saver
from ramify.runtime.langgraph.checkpointer import saver as saver_module
from ramify.runtime.langgraph.checkpointer import tables
from ramify.runtime.langgraph.checkpointer.group_commit import WriteMode


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def fold(values: list[str], writes: list[list[str]]) -> list[str]:
    return [*values, *(item for write in writes for item in write)]


class Delta(TypedDict):
    log: Annotated[list[str], DeltaChannel(fold)]


def graph(saver: Any) -> Any:
    built = StateGraph(State)
    for name in "abc":
        built.add_node(name, lambda state, name=name: {"log": [name * 100]})
    built.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
    return built.compile(checkpointer=saver)


def config(thread: str = "1") -> Any:
    return {"configurable": {"thread_id": thread}}


@pytest.fixture
def saver(address: str) -> Iterator[Saver]:
    with Saver.open(address) as opened:
        yield opened


def stored(saver: Saver) -> int:
    with saver._engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(tables.values)).scalar_one()


def values(app: Any, thread: str) -> list[Any]:
    return [state.values for state in app.get_state_history(config(thread))]


def ids(saver: Saver, thread: str = "1") -> list[str]:
    return [one.checkpoint["id"] for one in saver.list(config(thread))]


def test_a_copy_goes_its_own_way(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": ["0"]}, config())
    saver.copy_thread("1", "2")
    assert [s.values for s in app.get_state_history(config("2"))] == [
        s.values for s in app.get_state_history(config())
    ]
    app.invoke({"log": ["again"]}, config("2"))
    assert len(app.get_state(config("2")).values["log"]) == 8
    assert len(app.get_state(config()).values["log"]) == 4
    saver.delete_thread("1")
    assert len(app.get_state(config("2")).values["log"]) == 8
    with pytest.raises(ValueError, match="holds checkpoints already"):
        saver.copy_thread("2", "2")


def test_pruning_keeps_the_newest_and_sweeps_the_rest(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": ["0"]}, config())
    before, count = app.get_state(config()).values, stored(saver)
    saver.prune(["1"])
    assert len(ids(saver)) == 1
    assert app.get_state(config()).values == before
    assert stored(saver) < count
    assert len(app.invoke({"log": ["more"]}, config())["log"]) == 8


def test_pruning_breaks_no_branch(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": ["0"]}, config())
    early = next(s for s in app.get_state_history(config()) if s.next == ("b",))
    fork = app.update_state(early.config, {"log": ["forked"]}, as_node="a")
    newest = app.invoke(None, early.config)
    saver.prune(["1"])
    assert app.get_state(fork).values["log"][-1] == "forked"
    assert app.invoke(None, fork)["log"][-1] == "c" * 100
    assert newest == app.get_state(config()).values or len(ids(saver)) > 1


@pytest.mark.parametrize(("upkeep_s", "transactions"), [(3600.0, 1), (0.0, 3)])
def test_many_threads_are_pruned_in_pieces(
    saver: Saver, monkeypatch: pytest.MonkeyPatch, upkeep_s: float, transactions: int
) -> None:
    """Writers to another thread wait for one piece, not for all. Each transaction increments the deletion epoch."""
    monkeypatch.setattr(saver_module, "UPKEEP_S", upkeep_s)
    app = graph(saver)
    for name in "xyz":
        app.invoke({"log": ["0"]}, config(name))
    before = house_number(saver)
    saver.prune(["x", "y", "z"])
    assert house_number(saver) - before == transactions
    assert [len(ids(saver, name)) for name in "xyz"] == [1, 1, 1]


def house_number(saver: Saver) -> int:
    with saver._engine.connect() as connection:
        return connection.execute(select(tables.deletion_epoch_table.c.number)).scalar_one()


def test_retention_by_count_age_and_tag(address: str) -> None:
    now = [0.0]
    with Saver.open(address, clock=lambda: now[0]) as saver:
        app = graph(saver)
        tagged = {**config(), "metadata": {"keep": True}}
        app.invoke({"log": ["0"]}, tagged)
        now[0] = 100.0
        app.invoke({"log": ["1"]}, config())
        every = ids(saver)
        saver.prune(["1"], keep=3, older_than_s=1000.0)
        assert ids(saver) == every
        saver.prune(["1"], keep=2, older_than_s=50.0, keep_tags=["keep"])
        assert ids(saver) == every
        saver.prune(["1"], keep=2, older_than_s=50.0)
        assert len(ids(saver)) == 5  # those of the second invocation
        saver.prune(["1"], keep=2)
        assert ids(saver) == every[:2]
        for rule in ({"strategy": "none"}, {"keep": 0}):
            with pytest.raises(ValueError):
                saver.prune(["1"], **rule)


def test_a_single_string_instead_of_a_list_is_refused(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": ["0"]}, {**config(), "metadata": {"gold": True}})
    app.invoke({"log": ["1"]}, config())
    every = ids(saver)
    with pytest.raises(TypeError, match=r"thread_ids=\['1'\]"):
        saver.prune("1", strategy="delete")
    with pytest.raises(TypeError, match=r"keep_tags=\['gold'\]"):
        saver.prune(["1"], keep_tags="gold")
    with pytest.raises(TypeError, match=r"run_ids=\['abc'\]"):
        saver.delete_for_runs("abc")
    assert ids(saver) == every


def test_writes_of_ancestors_that_delta_channels_need_are_kept(saver: Saver) -> None:
    def built(saver: Any) -> Any:
        made = StateGraph(Delta)
        for name in "abc":
            made.add_node(name, lambda state, name=name: {"log": [name]})
        return made.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").compile(checkpointer=saver)

    app, plain = built(saver), built(InMemorySaver())
    expected = plain.invoke({"log": ["0"]}, config())
    assert app.invoke({"log": ["0"]}, config()) == expected
    saver.prune(["1"])
    assert app.get_state(config()).values == expected


@pytest.mark.parametrize("how", ["prune", "delete_thread", "delete_for_runs"])
def test_a_saver_notices_deletions_by_another_process(saver: Saver, address: str, how: str) -> None:
    """The values and threads that this saver remembers may be deleted, and their numbers may belong to others by
    now."""

    class Switch(TypedDict):
        on: bool
        text: str

    def turn(state: Switch) -> Switch:
        return {"on": not state["on"], "text": "it was on" * 30 if state["on"] else "it was off" * 30}

    app = StateGraph(Switch).add_node("turn", turn).add_edge(START, "turn").compile(checkpointer=saver)
    for _ in range(3):
        app.invoke({"on": False}, {**config(), "metadata": {"run_id": "first"}})
    with Saver.open(address) as other:
        {
            "prune": lambda: other.prune(["1"]),
            "delete_thread": lambda: other.delete_thread("1"),
            "delete_for_runs": lambda: other.delete_for_runs(["first"]),
        }[how]()
        graph(other).invoke({"log": ["another's"]}, config("2"))
    for on in (True, False, True):
        last = app.invoke({"on": on}, config())
        assert values(app, "1")[0] == last == {"on": not on, "text": ("it was on" if on else "it was off") * 30}
    assert graph(saver).get_state(config("2")).values["log"][0] == "another's"


def test_several_processes_write_one_thread(saver: Saver, address: str) -> None:
    """Values and tasks' writes that this saver has not seen were added by the other one meanwhile."""
    app = graph(saver)
    app.invoke({"log": ["0"]}, config())
    with Saver.open(address) as other:
        for at, (mine, its) in enumerate([(app, graph(other)), (graph(other), app)] * 2):
            mine.invoke({"log": [f"{at}" * 50]}, config())
            its.invoke({"log": [f"{at}" * 50]}, config())
            here = app.get_state(config())
            for each in (saver, other):
                each.put_writes(here.config, [("log", ["a" * 100])], "task")
                each.put_writes(here.config, [("__error__", at)], "task")
        both = [values(graph(each), "1") for each in (saver, other)]
        written = other.get_tuple(app.get_state(config()).config)
    assert both[0] == both[1]
    assert len(both[0][0]["log"]) == 4 * 9
    assert written is not None
    assert written.pending_writes == [("task", "__error__", 3), ("task", "log", ["a" * 100])]


@pytest.mark.postgres
def test_a_prune_sees_the_writes_that_it_waited_for(postgres_server: str) -> None:
    """This also holds if an administrator made transactions see one state from their beginning."""
    import psycopg

    address = postgres.new_database(postgres_server)
    with psycopg.connect(address, autocommit=True) as own:
        own.execute(f"ALTER DATABASE \"{own.info.dbname}\" SET default_transaction_isolation TO 'repeatable read'")
    place: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}

    def made(number: int, text: str) -> Any:
        return {**empty_checkpoint(), "id": f"{number}", "channel_values": {"text": text * 100}}

    with Saver.open(address) as saver, Saver.open(address) as other, ThreadPoolExecutor() as pool:
        for number, text in enumerate("ab"):
            place = saver.put(place, made(number, text), {}, {})
        saver._writer._how = lambda _: WriteMode.CHECKED  # type: ignore[method-assign]  # so that there is a moment
        writes, pruned = saver._writer._finish, []

        def late(connection: Any, commit: Any) -> None:
            def wait_for_prune() -> None:
                pruned.append(pool.submit(other.prune, ["1"]))
                with psycopg.connect(address, autocommit=True) as own:
                    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                    while own.execute(waiting).fetchone() == (0,):
                        time.sleep(0.01)
                commit()

            writes(connection, wait_for_prune)

        saver._writer._finish = late
        saver.put(place, made(2, "a"), {}, {})  # its value is that of a checkpoint which the prune deletes
        pruned[0].result()
        found = other.get_tuple({"configurable": {"thread_id": "1"}})
        assert ids(other) == ["2"]
    assert found is not None
    assert found.checkpoint["channel_values"] == {"text": "a" * 100}
