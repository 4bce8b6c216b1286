"""Runs, threads and items that earlier releases recorded continue with the present code, and nothing is done
twice."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from disks import read_only
from langgraph.graph import StateGraph
from langgraph.types import Command

import ramify.graph
from ramify import Runtime
from ramify.cli.main import run_command_line
from ramify.graph import Saver, Store
from ramify.runtime.store.address import REVISIONS
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest
from tests.warm_process import WarmInterpreter

RECORDINGS = sorted(Path(__file__).parent.glob("*.tar.gz"), key=lambda path: path.name)


@dataclass(frozen=True)
class Recording:
    version: str
    folder: Path
    runs: dict[str, str]
    app: ModuleType

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def outbox(self) -> list[str]:
        return (self.folder / "outbox").read_text().splitlines()


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.name.removesuffix(".tar.gz"))
def recording(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    subprocess.run(["tar", "-xzf", str(request.param), "-C", str(tmp_path)], check=True)
    database = sqlite3.connect(tmp_path / "home" / "ramify.db")
    with database:
        database.execute("UPDATE runs SET workspace = replace(workspace, '/recorded', ?)", (str(tmp_path),))
        database.execute("UPDATE runs SET workflow = replace(workflow, '/recorded', ?)", (str(tmp_path),))
    database.close()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HISTORY_OUTBOX", str(tmp_path / "outbox"))
    monkeypatch.delenv("HISTORY_KILL", raising=False)
    monkeypatch.delitem(sys.modules, "history_app", raising=False)
    import history_app

    assert history_app.__file__ == str(tmp_path / "history_app.py")
    version = request.param.name.removesuffix(".tar.gz")
    yield Recording(version, tmp_path, json.loads((tmp_path / "runs.json").read_text()), history_app)
    del sys.modules["history_app"]


async def resume(recording: Recording, name: str, **answer: Any) -> Any:
    model = ScriptedModel(refuse)
    async with (
        LLMClient("http://model.test/v1", transport=model) as client,
        Runtime(home=recording.home, sandbox="copy", llm=client) as runtime,
    ):
        return await runtime.resume(recording.runs[name], **answer)


def refuse(request: ChatRequest) -> str:
    raise AssertionError(f"asked again what is recorded: {request}")


async def test_recorded_values_are_decoded(recording: Recording) -> None:
    expected = [f"{type(value).__name__} {value!r}" for value in recording.app.VALUES]
    assert await resume(recording, "every_value") == expected


async def test_recorded_effects_are_not_repeated(recording: Recording) -> None:
    before = recording.outbox()
    assert before == ["pay 1", "pay 2", "id", "id", "id", "pay 3", "pay 4"]
    assert await resume(recording, "payments") == {
        "first": "receipt 1",
        "second": "receipt 2",
        "ids": [3, 4, 5],
        "receipts": ["receipt 3", "receipt 4", "receipt 5"],
    }
    assert recording.outbox() == [*before, "pay 5"]


async def test_recorded_branches_continue(recording: Recording) -> None:
    assert await resume(recording, "branches") == {
        "best": "ccc",
        "files": ["after.txt", "before.txt", "ccc.txt", "hello.txt"],
    }


async def test_a_recorded_question_can_be_answered(recording: Recording) -> None:
    before = recording.outbox()
    assert await resume(recording, "asks", answer="yes") == {"answer": "yes", "files": ["draft.txt", "hello.txt"]}
    assert recording.outbox() == [*before, "pay 6"]


async def test_recorded_model_calls_are_not_repeated(recording: Recording) -> None:
    told = await resume(recording, "asks_model")
    assert len(told) == 4
    assert all(text.startswith("answer ") for text in told)


def test_a_recorded_thread_continues_with_its_files(recording: Recording) -> None:
    config = {"configurable": {"thread_id": "worlds"}}
    workspace = recording.folder / "workspace"
    with ramify.graph.saver(recording.home) as saver, recording.app.app(recording.home, workspace, saver) as app:
        result = app.invoke(Command(resume="yes"), config)
    assert result["log"] == ["begin", "review yes", "end begun.txt,hello.txt Bob"]
    assert type(result["customer"]) is recording.app.Customer


def test_a_recorded_thread_of_the_saver_alone_continues(recording: Recording) -> None:
    def ask(state: Any) -> dict[str, Any]:
        return {"log": [f"asked {recording.app.ask_in_graph('Go on?')}"]}

    builder: StateGraph[Any] = StateGraph(recording.app.State)
    builder.add_node("ask", ask)
    builder.set_entry_point("ask")
    with Saver(recording.folder / "threads.db") as saver:
        app = builder.compile(checkpointer=saver)
        result = app.invoke(Command(resume="yes"), {"configurable": {"thread_id": "plain"}})
    assert result["log"] == ["started", "asked yes"]
    assert type(result["customer"]) is recording.app.Customer
    assert result["customer"].name == "Cyd"


def test_a_recorded_item_of_the_store_is_read(recording: Recording) -> None:
    with Store(recording.folder / "threads.db") as store:
        item = store.get(("users", "ada"), "likes")
    assert item is not None
    assert item.value == {"colour": "red", "n": 3}


@pytest.mark.parametrize("command", ["ls", "show", "tree", "log", "effects", "fsck"])
def test_recorded_homes_can_be_inspected(recording: Recording, command: str, warm: WarmInterpreter) -> None:
    run = [] if command in ("ls", "fsck") else [recording.runs["payments"]]
    done = warm.run(["--home", recording.home, command, *run], cwd=recording.folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_home_that_cannot_be_written_is_read_as_it_is(
    recording: Recording, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its tables are old: a copy of them is migrated."""
    database = recording.home / "ramify.db"
    before = database.read_bytes()

    def said(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run_command_line(["--home", str(recording.home), *words])
        return status, *capfd.readouterr()

    def looks() -> list[tuple[int, str, str]]:
        return [said(*words) for words in (("inbox", "--json"), ("ls", "--json"), ("show", "--json"))]

    with read_only(recording.home):
        still = looks()
        asked = json.loads(still[0][1])
        refused = said("answer", asked[0]["id"], "true")
    assert (refused[0], "Traceback" in refused[2]) == (1, False), refused[2]
    assert (len(asked), database.read_bytes()) == (2, before)
    assert looks() == still
    tables_were_old = before[60:64] != database.read_bytes()[60:64]  # `user_version` in the header of SQLite
    assert (database.read_bytes() != before) == tables_were_old
    assert tables_were_old == (int.from_bytes(before[60:64], "big") < len(REVISIONS))
