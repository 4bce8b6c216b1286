"""`ramify threads`: threads of LangGraph's own savers go on under Ramify's, and the other way."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import postgres
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from ramify import Saver

TOKYO = ZoneInfo("Asia/Tokyo")
CONFIG: Any = {"configurable": {"thread_id": "1"}}


@dataclass(eq=False)
class Note:
    """LangGraph's form makes the time zone an offset and the tuple a list: only texts are compared."""

    text: str
    at: datetime
    marks: tuple[str, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Note) and other.text == self.text


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    note: Note


def ask(state: State) -> Any:
    return {"log": [interrupt("go on?")], "messages": [AIMessage("asked")]}


def agent(saver: BaseCheckpointSaver[Any]) -> Any:
    """Two tasks by `Send`, one of which asks in a subgraph."""
    below = StateGraph(State).add_node("before", lambda s: {"log": ["below"]}).add_node("ask", ask)
    below = below.add_edge(START, "before").add_edge("before", "ask")
    top = StateGraph(State).add_node("work", lambda s: {"log": ["work"]}).add_node("below", below.compile())
    top = top.add_node("note", lambda s: {"note": Note("kept", datetime(2026, 1, 2, tzinfo=TOKYO), ("a",))})
    top = top.add_conditional_edges("note", lambda s: [Send("work", s), Send("below", {"log": []})])
    return top.add_edge(START, "note").compile(checkpointer=saver)


def begun(saver: BaseCheckpointSaver[Any]) -> Any:
    app = agent(saver)
    assert app.invoke({"log": ["in"], "messages": [HumanMessage("hello", id="h")]}, CONFIG)["__interrupt__"]
    return seen(app)


def seen(app: Any) -> list[Any]:
    """All that LangGraph says of the thread."""
    return [*app.get_state_history(CONFIG), app.get_state(CONFIG, subgraphs=True)]


def goes_on(saver: BaseCheckpointSaver[Any]) -> None:
    app = agent(saver)
    assert app.invoke(Command(resume="yes"), CONFIG)["log"][-3:] == ["work", "below", "yes"]
    assert app.invoke({"log": ["again"]}, CONFIG)["__interrupt__"]
    earlier = next(state for state in app.get_state_history(CONFIG) if state.next == ("note",))
    assert app.invoke(None, earlier.config)["__interrupt__"]  # a branch


Theirs = Callable[[], AbstractContextManager[BaseCheckpointSaver[Any]]]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Theirs]]:
    """The address of a database of LangGraph's, and how to open its saver."""
    if request.param == "sqlite":
        file = tmp_path / "their checkpoints.sqlite"
        yield str(file), lambda: SqliteSaver.from_conn_string(str(file))
        return
    saver = pytest.importorskip("langgraph.checkpoint.postgres", reason="langgraph-checkpoint-postgres").PostgresSaver
    if why := postgres.why_not():
        pytest.skip(why)
    with postgres.server() as server:
        address = postgres.new_database(server)

        @contextmanager
        def opened() -> Iterator[BaseCheckpointSaver[Any]]:
            with saver.from_conn_string(address) as found:
                found.setup()
                yield found

        yield address, opened


def test_threads_go_there_and_back(theirs: tuple[str, Theirs], ramify: Any, tmp_path: Path) -> None:
    address, opened = theirs
    with opened() as saver:
        before = begun(saver)
    ours = tmp_path / "ours.db"
    assert ramify("threads", "import", address, "--to", ours).out == f"1 thread, {len_of(ours)} checkpoints\n"
    with Saver(ours) as saver:
        assert seen(agent(saver)) == before
        goes_on(saver)
        after = seen(agent(saver))
    ramify("threads", "export", address, "--from", ours, "--load", __file__)
    with opened() as saver:
        assert seen(agent(saver)) == after
        goes_on(saver)


def len_of(ours: Path) -> int:
    with Saver(ours) as saver:
        return len(list(saver.list(CONFIG)))


async def test_a_database_of_an_async_saver(ramify: Any, tmp_path: Path) -> None:
    file = tmp_path / "theirs.sqlite"
    async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
        await agent(saver).ainvoke({"log": ["in"]}, CONFIG)
    ramify("threads", "import", file, "--to", tmp_path / "ours.db")
    with Saver(tmp_path / "ours.db") as ours:
        goes_on(ours)


def test_a_thread_of_the_home_and_what_is_refused(home: Any, ramify: Any, tmp_path: Path) -> None:
    file, other = tmp_path / "theirs.sqlite", tmp_path / "other.sqlite"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        begun(saver)
    told = ramify("threads", "import", file, "--json").json
    assert told == {"threads": [{"thread": "1", "checkpoints": 6, "new": 6}], "checkpoints": 6, "new": 6}
    assert ramify("threads", "import", file).out == "1 thread, 6 checkpoints, 6 of them there before\n"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        goes_on(saver)
    with Saver(tmp_path / "ours.db"):
        pass
    for words, said in (
        (("export", file, "--thread", "1"), "checkpoints that the source does not have"),
        (("import", file, "--thread", "2"), "no thread 2"),
        (("import", other), "no such file"),
        (("export", other, "--from", other), "no such file"),
        (("import", tmp_path / "ours.db"), "no threads in"),
    ):
        done = ramify("threads", *words)
        assert (done.status, said in done.err) == (1, True), done
    assert not other.exists()
