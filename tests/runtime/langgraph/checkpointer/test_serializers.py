"""Reading a checkpoint builds the program's own data, and imports or calls nothing that a row names."""

from __future__ import annotations

import enum
import json
import sys
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from ramify import Saver
from ramify.runtime.codec.object_parts import same
from ramify.runtime.langgraph.checkpointer import Cache
from ramify.runtime.langgraph.checkpointer.serializers import PLAIN_SERIALIZER, StrictSerializer
from ramify.runtime.langgraph.errors import TypeNotAllowed

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


class Inner(BaseModel):
    x: int


class Plan(BaseModel):
    inner: Inner
    colour: Colour = Colour.RED


@dataclass
class Point:
    x: int


class Pair(NamedTuple):
    left: int
    right: str


class Names(set):  # type: ignore[type-arg]
    pass


VALUES: list[Any] = [
    HumanMessage("x", id="1"),
    AIMessage("x", tool_calls=[{"name": "a", "args": {}, "id": "1"}]),
    Plan(inner=Inner(x=1), colour=Colour.RED),
    [Point(1)],
    {"a": Pair(1, "x"), "b": Colour.RED},
    {1, 2},
    Names({"a"}),
    deque([1]),
    Path("a"),
    UUID(int=7),
    Decimal("1.50"),
    datetime(2026, 1, 1, tzinfo=UTC),
    timedelta(1),
    Send("node", {"a": Point(1)}),
    Interrupt("x", id="1"),
    b"x",
    None,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_programs_own_data_is_read_back(value: Any) -> None:
    ours, theirs = StrictSerializer(), JsonPlusSerializer()
    kept = ours.dumps_typed(value)
    assert kept == theirs.dumps_typed(value)
    back = ours.loads_typed(kept)
    assert (type(back), back) == (type(value), value)


@dataclass
class Late:
    x: int
    y: int = field(init=False)
    at: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        self.y = self.x + 1


class Page(BaseModel, Generic[T]):
    items: list[T]


class Event(BaseModel):
    at: datetime
    more: Any = None


BERLIN = ZoneInfo("Europe/Berlin")
CHANGED: list[Any] = [
    datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    {"at": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2), "CEST"))},
    Late(1),
    Plan(inner=Inner(x=1)),
    Page[Inner](items=[Inner(x=1)]),
    Event(at=datetime(2026, 7, 1, tzinfo=BERLIN)),
    Event(at=datetime(2026, 7, 1, tzinfo=UTC), more=(1, 2)),
]


@pytest.mark.parametrize("value", CHANGED, ids=lambda value: type(value).__name__)
def test_values_that_langgraphs_form_would_change_are_read_back(value: Any) -> None:
    serde = StrictSerializer()
    kept = serde.dumps_typed(value)
    back = serde.loads_typed(kept)
    assert same(back, value) and back == value
    assert kept != JsonPlusSerializer().dumps_typed(value)
    assert "$" not in str(PLAIN_SERIALIZER.loads_typed(kept))


MARK = "touch {}"
HOSTILE: list[tuple[int, Any]] = [
    (0, ("os", "system", MARK)),
    (0, ("builtins", "exec", "open('{}', 'w')")),
    (1, ("os", "system", [MARK])),
    (1, ("subprocess", "run", [["touch", "{}"]])),
    (2, ("subprocess", "Popen", {"args": MARK, "shell": True})),
    (3, ("os", "path", "{}", "join")),
    (3, ("pathlib", "Path", "{}", "touch")),
    (4, ("subprocess", "Popen", {"args": MARK, "shell": True})),
    (5, ("subprocess", "Popen", {"args": MARK, "shell": True})),
    (5, ("ramify_hostile_module", "Model", {})),
    (2, ("ramify_hostile_module", "Point", {"x": 1})),
    (0, ("ramify_hostile_module", "touch", 1)),
    (0, (1, 2, 3)),
    (42, ("a", "b", "c")),
    (64, {"$": "dataclass", "t": "ramify_hostile_module:Point", "v": {"x": 1}}),
    (64, {"$": "dataclass", "t": "os:system", "v": {}}),
]


def filled(part: Any, mark: Path) -> Any:
    if isinstance(part, str):
        return part.replace("{}", str(mark))
    if isinstance(part, list | tuple):
        return [filled(one, mark) for one in part]
    return {key: filled(one, mark) for key, one in part.items()} if isinstance(part, dict) else part


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that each attack would write, and a module that writes one when it is imported."""
    found = tmp_path / "mark"
    lines = (
        "from dataclasses import dataclass",
        "from pathlib import Path",
        f"Path({str(found)!r}).touch()",
        "@dataclass",
        "class Point:",
        "    x: int",
    )
    (tmp_path / "ramify_hostile_module.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ramify_hostile_module", raising=False)
    return found


@pytest.mark.parametrize(("code", "held"), HOSTILE, ids=[f"{code} {str(held)[:40]}" for code, held in HOSTILE])
def test_nothing_that_a_row_names_is_imported_or_called(code: int, held: Any, mark: Path) -> None:
    body = json.dumps(held).encode() if code == 64 else ormsgpack.packb(filled(held, mark))
    ext = ormsgpack.Ext(code, body)
    for body in (ormsgpack.packb(ext), ormsgpack.packb({"a": [ormsgpack.Ext(7, ormsgpack.packb([ext]))]})):
        with pytest.raises(TypeNotAllowed):
            StrictSerializer().loads_typed(("msgpack", body))
        PLAIN_SERIALIZER.loads_typed(("msgpack", body)) if code != 42 else None
        assert not mark.exists()
        assert "ramify_hostile_module" not in sys.modules


def test_pickle_is_not_read() -> None:
    for reader in (StrictSerializer(), PLAIN_SERIALIZER):
        with pytest.raises((NotImplementedError, ValueError)):
            reader.loads_typed(("pickle", b"cos\nsystem\n(S'true'\ntR."))


def test_a_type_may_be_named(mark: Path) -> None:
    body = ormsgpack.packb(ormsgpack.Ext(2, ormsgpack.packb(("ramify_hostile_module", "Point", {"x": 1}))))
    for allow in [("ramify_hostile_module", "Point")], []:
        serde = StrictSerializer(allow) if allow else StrictSerializer().with_msgpack_allowlist([Point])
        if not allow:
            sys.modules.pop("ramify_hostile_module")
            with pytest.raises(TypeNotAllowed, match=r"allow=\[\('ramify_hostile_module', 'Point'\)\]"):
                serde.loads_typed(("msgpack", body))
        else:
            assert serde.loads_typed(("msgpack", body)).x == 1


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    plan: Plan
    points: list[Point]
    anything: Any


KEPT: dict[str, Any] = {"plan": Plan(inner=Inner(x=1)), "points": [Point(1)], "anything": Pair(1, "x")}


class Whole(BaseModel):
    plan: Plan
    seen: list[Colour] = []


def test_plain_langgraph_apps_work_as_they_did(tmp_path: Path) -> None:
    def node(state: State) -> dict[str, Any]:
        if state.get("plan") is not None:
            assert isinstance(state["plan"], Plan)
            assert isinstance(state["points"][0], Point)
        return {"messages": [AIMessage("a")], **KEPT}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", END)
    config: Any = {"configurable": {"thread_id": "1"}}
    for _ in range(2):  # the second time, it is read from the database
        with Saver.open(f"sqlite:///{tmp_path}/threads.db") as saver:
            app = graph.compile(checkpointer=saver)
            app.invoke({"messages": [HumanMessage("q")]}, config)
            found = app.get_state(config).values
            assert {name: found[name] for name in KEPT} == KEPT


def test_a_model_as_state(tmp_path: Path) -> None:
    def node(state: Whole) -> dict[str, Any]:
        assert isinstance(state.plan, Plan)
        return {"seen": [*state.seen, Colour.RED]}

    graph = StateGraph(Whole).add_node("node", node).add_edge(START, "node").add_edge("node", END)
    config: Any = {"configurable": {"thread_id": "1"}}
    for _ in range(2):
        with Saver.open(f"sqlite:///{tmp_path}/threads.db") as saver:
            app = graph.compile(checkpointer=saver)
            app.invoke({"plan": Plan(inner=Inner(x=1))}, config)
            assert app.get_state(config).values["plan"] == Plan(inner=Inner(x=1))


def test_the_default_of_saver_and_cache_is_strict(tmp_path: Path) -> None:
    with Saver.open(f"sqlite:///{tmp_path}/a.db") as saver, Cache.open(f"sqlite:///{tmp_path}/a.db") as cache:
        for serde in (saver.serde, cache.serde, saver.with_allowlist({("a", "b")}).serde):
            assert isinstance(serde, StrictSerializer)
    own = JsonPlusSerializer()
    with Saver.open(f"sqlite:///{tmp_path}/a.db", serde=own) as saver:
        assert saver.serde is own


def test_a_class_inside_a_function_is_stored_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Local:
        n: int

    serde = StrictSerializer()
    serde.dumps_typed(Local(1))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("langgraph.constants", "Send", Send("to", {"v": [1]})),
        ("langgraph.constants", "Interrupt", Interrupt(value="go on?")),
        ("langgraph.pregel.types", "Interrupt", Interrupt(value="go on?")),
    ],
)
def test_a_thread_of_langgraph_0_2_is_read(module: str, name: str, value: Any) -> None:
    form, held = (1, ["to", {"v": [1]}]) if name == "Send" else (2, {"value": "go on?", "when": "during"})
    stored = ormsgpack.packb([ormsgpack.Ext(form, ormsgpack.packb((module, name, held)))])
    assert StrictSerializer().loads_typed(("msgpack", stored)) == [value]


def test_an_earlier_place_of_a_type_opens_no_other_name() -> None:
    stored = ormsgpack.packb(ormsgpack.Ext(1, ormsgpack.packb(("langgraph.constants", "warn", ["x"]))))
    with pytest.raises(TypeNotAllowed):
        StrictSerializer().loads_typed(("msgpack", stored))
