"""Fixtures: graphs over worlds on the `copy` backend, each with its own home and workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import StateGraph

import ramify
import ramify.graph
from ramify.fork_engine import crash_points
from ramify.runtime.langgraph.app.world_app import WorldGraph
from ramify.runtime.records import CheckpointRecord, LLMRecord, OpRecord, RunRecord, RunStatus, RunUpdate
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from tests.runtime.langgraph import lost_snapshots

Compile = Callable[..., WorldGraph]


class Kept:
    """What an app's home holds."""

    def __init__(self, app: WorldGraph) -> None:
        self._app = app

    def _services(self) -> Any:
        return self._app.session.portal.wait(self._app.session.services())

    def leave_running(self) -> None:
        """Leave the newest run as a process does that is killed before it records the run's end."""
        update = RunUpdate(status=RunStatus.RUNNING)
        self._app.session.portal.wait(self._services().store.commit(self.runs[0].id, update=update))

    @property
    def runs(self) -> list[RunRecord]:
        return self._app.session.portal.wait(self._services().store.runs())

    @property
    def ops(self) -> list[OpRecord]:
        return self._app.session.portal.wait(self._services().store.ops(self._app.session.last_run_id))

    @property
    def llm(self) -> list[LLMRecord]:
        return self._app.session.portal.wait(self._services().store.llm(self._app.session.last_run_id))

    @property
    def checkpoints(self) -> list[CheckpointRecord]:
        return self._app.session.portal.wait(self._services().store.checkpoints(self._app.session.last_run_id))


@pytest.fixture
def scripted() -> ScriptedModel:
    return ScriptedModel(lambda request: f"said {request.messages[-1].content}")


@pytest.fixture
def compile_graph(home: Path, workspace: Path, scripted: ScriptedModel) -> Iterator[Compile]:
    made: list[WorldGraph] = []

    def make(graph: StateGraph[Any, Any, Any, Any], **options: Any) -> WorldGraph:
        client = LLMClient("http://model.test/v1", transport=scripted)
        options = {"workspace": workspace, "home": home, "sandbox": "copy", "llm": client, **options}
        made.append(ramify.compile(graph, **options))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def kept() -> Callable[[WorldGraph], Kept]:
    return Kept


@pytest.fixture
def nothing_ran_again() -> Iterator[None]:
    lost_snapshots.LOG.clear()
    yield
    crash_points.at = None


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[ramify.graph.Saver]:
    with ramify.graph.Saver(tmp_path / "threads.db") as saver:
        yield saver
