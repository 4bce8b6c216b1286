"""Time travel in nested graphs that keep different state between calls: same runs, questions and states as in plain
LangGraph.

Checkpoints inside graphs of which none keeps its state are left out. docs/langgraph.md says what differs there, and
test_time_travel.py tests it.
"""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import ramify
from ramify import current_sandbox
from ramify.runtime.user_code.scope import is_in_a_run
from tests.samples import PATIENT, sample

CONFIG: Any = {"configurable": {"thread_id": "1"}}
BOUNDED = settings(
    max_examples=200 if "RAMIFY_DEEP" in os.environ else sample(3, 8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


@dataclass(frozen=True)
class Nesting:
    """A nesting of graphs. `keeps` is the `checkpointer` argument of each graph around the innermost, from the inside
    out."""

    keeps: tuple[bool | None, ...]
    questions: int = 1
    worlds: bool = False
    is_async: bool = False

    def build(self, ran: list[str]) -> StateGraph[State]:
        def node(name: str) -> Any:
            def run(state: State) -> State:
                ran.append(name)
                if self.worlds and is_in_a_run():
                    (current_sandbox().path / name).write_text(name)
                return {"said": [name]}

            return run

        def asks(name: str) -> Any:
            def ask(state: State) -> State:
                ran.append(name)
                if self.worlds and is_in_a_run():
                    (current_sandbox().path / name).write_text(name)
                return {"said": [interrupt(name)]}

            return ask

        graph = StateGraph(State).add_node("first", node("first")).add_edge(START, "first")
        graph.add_node("last", node("last"))
        names = [f"asks{number}" for number in range(self.questions)]
        for name in names:
            graph.add_node(name, asks(name)).add_edge("first", name)
        graph.add_edge(names, "last")
        for depth, keeps in enumerate(self.keeps):
            outer = StateGraph(State)
            for name in (f"before{depth}", f"after{depth}"):
                outer.add_node(name, node(name))
            outer.add_node(f"inner{depth}", graph.compile(checkpointer=keeps))
            outer.add_edge(START, f"before{depth}").add_edge(f"before{depth}", f"inner{depth}")
            outer.add_edge(f"inner{depth}", f"after{depth}")
            graph = outer
        return graph


@dataclass(frozen=True)
class Move:
    """A move of the traveller. `place` is one of the checkpoints that exist by then; an answer continues from the
    newest."""

    kind: str  # answer, answer one, replay, update, fork
    place: int = 0


class Traveller:
    """One thread of a graph, and everything that its caller sees."""

    def __init__(self, graph: Any, ran: list[str], *, is_async: bool) -> None:
        self._graph = graph
        self._is_async = is_async
        self._ran = ran
        self._answers = 0
        self.seen: list[Any] = []
        self._invoke({"said": []}, CONFIG)

    def go(self, move: Move) -> None:
        if move.kind.startswith("answer"):
            self._answer(only_one=move.kind == "answer one")
            return
        places = list(self._places())
        label, config = self._innermost(places) if move.place < 0 else places[move.place % len(places)]
        self.seen.append((move.kind, label))
        if move.kind != "replay":
            try:
                config = self._graph.update_state(config, {"said": ["by hand"]})
            except Exception as error:  # noqa: BLE001  # whatever it is: the plain graph has to raise the same
                self.seen.append((type(error), str(error)))
                return
        if move.kind == "fork":
            self._invoke({"said": ["again"]}, config)
        else:
            self._invoke(None, config)

    def _innermost(self, places: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        """The checkpoint of the innermost graph that keeps its state, where its questions come next."""
        asking = [
            (label, config)
            for label, config in places
            if label[0] and ("asks0" in label[3] or label[3][:1] in _INNER)
        ]
        return max(asking, key=lambda place: (place[0][0].count("|"), place[0][1]))

    def _answer(self, *, only_one: bool) -> None:
        asked = sorted(self._graph.get_state(CONFIG).interrupts, key=lambda each: str(each.value))
        self._answers += 1
        if len(asked) > 1 or only_one:
            given = {each.id: f"answer {self._answers}" for each in (asked[:1] if only_one else asked)}
            self._invoke(Command(resume=given) if given else None, CONFIG)
        else:
            self._invoke(Command(resume=f"answer {self._answers}"), CONFIG)

    def _invoke(self, given: Any, config: Any) -> None:
        self._ran.clear()
        chunks: list[Any] = []
        try:
            for namespace, mode, chunk in self._streamed(given, config):
                chunks.append((_names(namespace), mode, _plain(chunk)))
        except Exception as error:  # noqa: BLE001  # whatever it is: the plain graph has to raise the same
            chunks.append((type(error), str(error)))
        self.seen.append((sorted(self._ran), sorted(map(repr, chunks))))
        state = self._graph.get_state(CONFIG, subgraphs=True)
        self.seen.append(self._shown(state))

    def _streamed(self, given: Any, config: Any) -> Iterator[Any]:
        options: Any = {"stream_mode": ["updates", "values"], "subgraphs": True}
        if not self._is_async:
            yield from self._graph.stream(given, config, **options)
            return

        async def chunks() -> list[Any]:
            return [chunk async for chunk in self._graph.astream(given, config, **options)]

        yield from asyncio.run(chunks())

    def _shown(self, state: Any) -> Any:
        inside = [self._shown(task.state) for task in state.tasks if hasattr(task.state, "tasks")]
        return state.next, state.values, sorted(each.value for each in state.interrupts), inside

    def _places(self) -> Iterator[tuple[Any, Any]]:
        """Every checkpoint that is not inside graphs of which none keeps its state."""
        namespaces = [""]
        for namespace in namespaces:  # the list grows
            parts = namespace.split("|")
            for state in self._graph.get_state_history(_all_of(namespace)):
                if not namespace or not all(":" in part for part in parts):
                    yield _label(state), state.config
                for task in self._graph.get_state(state.config, subgraphs=True).tasks:
                    inner = task.state.config["configurable"]["checkpoint_ns"] if hasattr(task.state, "tasks") else ""
                    if inner not in namespaces:
                        namespaces.append(inner)


_INNER = [("inner0",), ("inner1",), ("inner2",)]


def _all_of(namespace: str) -> Any:
    return {"configurable": {"thread_id": "1", "checkpoint_ns": namespace}} if namespace else CONFIG


def _names(namespace: Any) -> str:
    return "|".join(part.partition(":")[0] for part in namespace)


def _plain(chunk: Any) -> Any:
    if isinstance(chunk, dict) and "__interrupt__" in chunk:
        return {**chunk, "__interrupt__": sorted(each.value for each in chunk["__interrupt__"])}
    return chunk


def _label(state: Any) -> Any:
    namespace = state.config["configurable"].get("checkpoint_ns", "")
    return _names(namespace.split("|")), state.metadata["step"], state.metadata["source"], state.next


@pytest.fixture
def travels(tmp_path: Path) -> Any:
    (tmp_path / "workspace").mkdir()

    def check(nesting: Nesting, moves: list[Move]) -> None:
        ran: list[str] = []
        graph = nesting.build(ran).compile(checkpointer=InMemorySaver())
        plain = Traveller(graph, ran, is_async=nesting.is_async)
        for move in moves:
            plain.go(move)
        with ramify.compile(
            nesting.build(ran),
            tmp_path / "workspace",
            home=tmp_path / "home",
            sandbox="copy",
            checkpointer=InMemorySaver(),
        ) as app:
            ours = Traveller(app, ran, is_async=nesting.is_async)
            for move in moves:
                ours.go(move)
        assert ours.seen == plain.seen

    return check


KEEPS = st.sampled_from([None, True, False])
MOVES = st.builds(
    Move, st.sampled_from(["answer", "answer", "answer one", "replay", "update", "fork"]), st.integers(0, 30)
)


@BOUNDED
@given(
    nesting=st.builds(
        Nesting, st.lists(KEEPS, max_size=3).map(tuple), st.integers(1, 2), st.booleans(), st.booleans()
    ),
    moves=st.lists(MOVES, min_size=1, max_size=4),
)
def test_travel_in_any_nesting(nesting: Nesting, moves: list[Move], travels: Any) -> None:
    travels(nesting, moves)


KINDS = ("replay", "update", "fork")
TRIED = {(True,): KINDS[:1], (None, True): KINDS[1:2], (True, None): KINDS[2:], (True, True): KINDS[:1]}
WAYS = [(keeps, kind) for keeps in [*TRIED, (None, True, None)] for kind in KINDS]
if not PATIENT:  # the deepest nesting in every way, and each other in one
    WAYS = [(keeps, kind) for keeps, kind in WAYS if kind in TRIED.get(keeps, KINDS)]


@pytest.mark.parametrize(("keeps", "kind"), WAYS)
def test_travel_to_the_innermost_question(keeps: tuple[bool | None, ...], kind: str, travels: Any) -> None:
    """If an answer was given there, the question is asked again."""
    asked = [Move("answer"), Move(kind, place=-1), Move("answer")]
    travels(Nesting(keeps, questions=2, worlds=True), asked)
