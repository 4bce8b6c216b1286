"""Threads are copied whole between any two checkpointers, and go on in the other one."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import postgres
import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from ramify import Saver
from ramify.graph import CopiedThread, copy_threads
from ramify.runtime.langgraph.checkpointer.thread_copies import copy_all, langgraph_threads, saver_threads
from ramify.runtime.langgraph.errors import ThreadNotCopied

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def joined(state: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(state or ()), *(one for write in writes for one in write)]


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    growing: Annotated[list[str], DeltaChannel(joined)]


class Numbered(InMemorySaver):
    """A saver that counts versions in numbers, as LangGraph's base class does."""

    def get_next_version(self, current: Any, channel: None) -> Any:
        return BaseCheckpointSaver.get_next_version(self, current, channel)


def graph(saver: BaseCheckpointSaver[Any]) -> Any:
    """Two nodes at once, the first by name ends last in the order of ids or not; one asks."""
    builder = StateGraph(State).add_node("z", lambda s: {"log": ["z"], "growing": ["z"]})
    builder = builder.add_node("a", lambda s: {"log": ["a"], "growing": ["a"]})
    builder = builder.add_node("ask", lambda s: {"log": [interrupt("?")], "growing": ["asked"]})
    return builder.add_edge(START, "z").add_edge(START, "a").add_edge(["a", "z"], "ask").compile(checkpointer=saver)


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    with Saver(tmp_path / "ours.db") as opened:
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteSaver]:
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.sqlite")) as opened:
        yield opened


@pytest.mark.parametrize("way", ["in", "out", "from memory", "from numbers", "numbers between theirs"])
def test_a_copied_thread_goes_on(way: str, saver: Saver, sqlite: SqliteSaver) -> None:
    numbered: Any = Numbered()
    source, target = {
        "in": (sqlite, saver),
        "out": (saver, sqlite),
        "from memory": (InMemorySaver(), saver),
        "from numbers": (numbered, saver),
        "numbers between theirs": (numbered, sqlite),
    }[way]
    assert graph(source).invoke({"log": []}, CONFIG)["__interrupt__"]
    copy_threads(source, target)
    assert list(graph(target).get_state_history(CONFIG)) == list(graph(source).get_state_history(CONFIG))
    state = graph(target).invoke(Command(resume="yes"), CONFIG)
    assert (state["log"], state["growing"]) == (["a", "z", "yes"], ["a", "z", "asked"])
    assert graph(target).invoke({"log": ["again"]}, CONFIG)["__interrupt__"]


def test_branches_that_gave_one_number_to_two_values_stay_apart(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saver that stores a channel's values by their versions must not take one branch's for the other's."""
    monkeypatch.setattr(saver, "get_next_version", Numbered().get_next_version)  # a thread of Ramify 0.1
    source, target = saver, InMemorySaver()
    app = graph(source)
    app.invoke({"log": []}, CONFIG)
    asked = app.get_state(CONFIG).config
    for answer in ("one", "two"):
        app.update_state(asked, {"log": [answer]}, as_node="ask")
    copy_threads(source, target)
    states = graph(target).get_state_history(CONFIG)
    assert [state.values["log"][-1] for state in states if state.metadata["source"] == "update"] == ["two", "one"]


def test_a_copy_that_was_cut_off_is_finished(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    source = InMemorySaver()
    graph(source).invoke({"log": []}, CONFIG)
    put, left = saver.put, iter(range(2))

    def cut(*given: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return put(*given)

    monkeypatch.setattr(saver, "put", cut)
    with pytest.raises(KeyboardInterrupt):
        copy_threads(source, saver)
    monkeypatch.undo()
    assert copy_threads(source, saver) == [CopiedThread("1", checkpoints=3, new=1)]
    assert graph(saver).invoke(Command(resume="yes"), CONFIG)["log"] == ["a", "z", "yes"]


def test_nothing_is_written_if_a_thread_cannot_be_copied(saver: Saver) -> None:
    source: Any = InMemorySaver()
    for thread in ("1", "2"):
        graph(source).invoke({"log": []}, {"configurable": {"thread_id": thread}})
    graph(saver).invoke({"log": []}, {"configurable": {"thread_id": "2"}})
    with pytest.raises(ThreadNotCopied, match="target's thread 2"):
        copy_threads(source, saver)
    with pytest.raises(ThreadNotCopied, match="no thread 3"):
        copy_threads(source, saver, ["1", "3"])
    assert saver.get_tuple(CONFIG) is None
    with pytest.raises(ThreadNotCopied, match="counts the versions of channels in numbers"):
        copy_threads(source, Numbered())


@pytest.mark.parametrize(
    "bytes_there", [b"\x00", b"\xc1", b"\x80"], ids=["a number", "no msgpack", "an empty object"]
)
def test_a_damaged_checkpoint_is_named(sqlite: SqliteSaver, tmp_path: Path, bytes_there: bytes) -> None:
    graph(sqlite).invoke({"log": [], "growing": []}, CONFIG)
    newest = sqlite.get_tuple(CONFIG)
    assert newest is not None
    place = newest.config["configurable"]["checkpoint_id"]
    sqlite.conn.execute("UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = ?", (bytes_there, place))
    sqlite.conn.commit()
    with (
        langgraph_threads(tmp_path / "theirs.sqlite") as theirs,
        saver_threads(tmp_path / "ours.db", keep_exact=True, create=True) as ours,
        pytest.raises(ThreadNotCopied, match=f"checkpoint {place} of thread 1"),
    ):
        copy_all(theirs, ours)


@pytest.mark.postgres
def test_tables_of_an_earlier_postgres_saver_are_refused_by_name(postgres_server: str) -> None:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver

    address = postgres.new_database(postgres_server)
    with langgraph_threads(address, create=True):
        pass
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("ALTER TABLE checkpoint_writes DROP COLUMN task_path")
        connection.execute("DELETE FROM checkpoint_migrations WHERE v >= 9")
    with pytest.raises(ThreadNotCopied, match="PostgresSaver once"), langgraph_threads(address):
        pass
    with PostgresSaver.from_conn_string(address) as saver:
        saver.setup()
    with langgraph_threads(address) as found:
        assert found.names() == []


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(ThreadNotCopied, match="it is a folder"), langgraph_threads(tmp_path):
        pass
