"""For graphs that hypothesis draws, the caller of the plain graph and of the graph over worlds sees the same, event
for event.

With `max_concurrency=1`, parallel tasks have the same order in any two runs, so nothing has to be sorted. (In
LangGraph 1.2 a synchronous stream of custom values, messages or subgraphs takes that one thread for itself and waits
for ever, in the plain graph too: such a graph is streamed without these.) The intended differences of
docs/langgraph.md are left out; each has a test of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph

import ramify
from ramify.runtime.langgraph.app.world_app import WorldGraph
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from tests.runtime.langgraph.differential.gallery import GALLERY
from tests.runtime.langgraph.differential.observing import CONFIG, MODES, Comparable, answer, history, seen, streamed
from tests.runtime.langgraph.differential.pieces import Piece
from tests.runtime.langgraph.differential.shapes import Kind, Shape, build, shapes
from tests.samples import sample

DEEP = "RAMIFY_DEEP" in os.environ
"""Draw many more graphs, and run each of the gallery both sync and async; this takes minutes."""
BOUNDED = settings(
    max_examples=300 if DEEP else sample(5, 8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def observed(graph: Any, shape: Shape) -> list[Any]:
    """Return everything that the caller sees, in one order."""
    parallel = any(len(layer.kinds) > 1 for layer in shape.layers) and not shape.is_async
    config = CONFIG if parallel or shape.is_async else {**CONFIG, "max_concurrency": None}
    options = IN_ONE_THREAD if parallel else {}
    same, seen, given_, round_ = Comparable(), list[Any](), INPUT, 0
    while given_ is not None:
        chunks = asyncio.run(streamed(graph, given_, config, shape.is_async, **options))
        seen.extend(same(chunk) for chunk in chunks)
        given_, round_ = answer(chunks, round_), round_ + 1
    return [*seen, *history(graph, same)]


IN_ONE_THREAD: Any = {
    "stream_mode": [mode for mode in MODES if mode not in ("custom", "messages")],
    "subgraphs": False,
}
INPUT: Any = {"log": ["in"], "n": 0}


class Lab:
    """One home and one workspace for all examples of a test."""

    def __init__(self, folder: Path) -> None:
        self._home, self._workspace = folder / "home", folder / "workspace"
        self._workspace.mkdir()
        (self._workspace / "hello.txt").write_text("hello")

    def over_worlds(self, graph: Any, **options: Any) -> WorldGraph:
        client = LLMClient("http://model.test/v1", transport=ScriptedModel(lambda request: "said"))
        return ramify.compile(graph, self._workspace, home=self._home, sandbox="copy", llm=client, **options)

    def check_piece(self, piece: Piece, is_async: bool) -> None:
        graph = piece.make()
        if isinstance(graph, StateGraph):
            graph = graph.compile(checkpointer=InMemorySaver(), **piece.options)
        plain = seen(graph.copy({"checkpointer": InMemorySaver()}), piece, is_async)
        with self.over_worlds(piece.make(), checkpointer=InMemorySaver(), **piece.options) as app:
            ours = seen(app, piece, is_async)
        assert ours == plain
        assert len(plain) > 10

    def check(self, shape: Shape) -> None:
        plain = observed(build(shape).compile(checkpointer=InMemorySaver()), shape)
        with self.over_worlds(build(shape), checkpointer=InMemorySaver()) as app:
            ours = observed(app, shape)
        assert ours == plain
        assert len(plain) > 3


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield Lab(tmp_path)


@BOUNDED
@given(shape=shapes(Kind.PLAIN, Kind.SILENT, Kind.CUSTOM, Kind.MESSAGE, Kind.COMMAND))
def test_shapes_and_states(shape: Shape, lab: Lab) -> None:
    lab.check(shape)


@BOUNDED
@given(shape=shapes(Kind.PLAIN, Kind.FLAKY, Kind.FAILING, Kind.HANDLED))
def test_failures(shape: Shape, lab: Lab) -> None:
    lab.check(shape)


@BOUNDED
@given(shape=shapes(Kind.PLAIN, Kind.ASKING))
def test_interrupts(shape: Shape, lab: Lab) -> None:
    lab.check(shape)


@BOUNDED
@given(shape=shapes(Kind.PLAIN, Kind.SUBGRAPH, Kind.ASKING_SUBGRAPH, Kind.CALLING, Kind.LEAVING))
def test_subgraphs(shape: Shape, lab: Lab) -> None:
    lab.check(shape)


WAYS = [
    (name, is_async)
    for number, (name, piece) in enumerate(GALLERY.items())
    for is_async in (False, True)
    if not (not is_async and (piece.is_racy or piece.needs_loop))
    and (DEEP or piece.is_racy or piece.needs_loop or is_async == bool(number % 2))
]


@pytest.mark.parametrize(("name", "is_async"), WAYS)
def test_the_gallery(name: str, is_async: bool, lab: Lab) -> None:
    lab.check_piece(GALLERY[name], is_async)


DIFFERENCES = {
    "conflict": "test_a_conflict_names_both_nodes_whoever_is_first",
    "durability": "test_durability_exit_is_raised_to_sync",
    "cache": "test_a_cache_hit_needs_the_same_files_and_brings_its_own",
    "time travel into a subgraph": "test_going_back_into_a_subgraph_runs_only_what_follows",
    "tasks nobody waits for": "test_a_task_that_could_never_run_is_refused",
    "error handlers": "test_a_finished_error_handler_is_not_run_again_on_resume",
    "edges": "test_a_node_whose_edge_asks_is_not_run_again",
    "idle nodes": "test_a_node_is_not_idle_while_its_world_starts",
    "notes": "test_a_node_that_raises_says_where_and_the_thread_goes_on_from_before_it",
    "checkpoints": "test_a_checkpoint_holds_the_world_and_the_state_does_not",
    "private keys": "test_the_config_of_a_node_has_only_private_keys_of_ours",
    "class": "test_an_app_as_a_node_is_drawn_with_its_class",
}
"""What the graphs above leave out, and the test that shows each difference."""


def test_the_differences_are_those_that_are_written_down() -> None:
    here = Path(__file__).parents[1]
    page = (here.parents[2] / "docs" / "langgraph.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| [A-Z`]", page, re.MULTILINE)
    assert rows == list(DIFFERENCES)
    tests = "".join(path.read_text() for path in here.rglob("test_*.py"))
    for name in DIFFERENCES.values():
        assert f"def {name}(" in tests


def test_each_promise_of_the_page_has_its_test() -> None:
    here = Path(__file__).parents[1]
    page = (here.parents[2] / "docs" / "reference" / "langgraph-tests.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", page)
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}(" in (here / file).read_text(), (file, test)
