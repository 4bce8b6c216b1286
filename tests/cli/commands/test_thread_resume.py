"""A LangGraph thread from the command line: forked, merged, resumed and shown."""

from __future__ import annotations

import asyncio
import linecache
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramify.runtime.records import RunStatus, RunUpdate
from ramify.runtime.store import RunStore

GRAPH = """
import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

import ramify.graph
from ramify import SyncSandbox


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def write(state: State, sandbox: SyncSandbox) -> dict:
    (sandbox.path / "first").write_text("1")
    return {"log": ["write"]}


def think(state: State) -> dict:
    return {"log": ["think"]}


def side(name: str):
    def node(state: State, sandbox: SyncSandbox) -> dict:
        (sandbox.path / name).write_text(name)
        return {"log": [name]}

    return node


def last(state: State, sandbox: SyncSandbox) -> dict:
    said = interrupt("go on?") if (sandbox.path / "ask").exists() else "unasked"
    (sandbox.path / "last").write_text(said)
    return {"log": [",".join(sorted(path.name for path in sandbox.path.iterdir()))]}


def onward(state: State) -> str:
    return END


graph = StateGraph(State)
graph.add_node("write", write)
graph.add_node("think", think)
graph.add_node("left", side("left"))
graph.add_node("right", side("right"))
graph.add_node("last", last)
graph.add_edge(START, "write")
graph.add_edge("write", "think")
graph.add_edge("think", "left")
graph.add_edge("think", "right")
graph.add_edge(["left", "right"], "last")
graph.add_conditional_edges("last", onward, ["write", END])


def app() -> ramify.graph.WorldApp:
    return ramify.compile(graph, checkpointer=SAVER, sandbox="copy", name="flow")
"""
AMBIENT = """def side(name: str):
    def node(state: State) -> dict:
        sandbox = ramify.current_sandbox()"""
KEPT = "from ramify.graph import saver\nSAVER = saver()\n"
IN_MEMORY = "from langgraph.checkpoint.memory import InMemorySaver\nSAVER = InMemorySaver()\n"


class Program:
    """A user's file, and the runs that it made."""

    def __init__(self, path: Path) -> None:
        from ramify.cli.targets import load

        self.path = path
        self.module = load(f"{path}:__dict__")

    def invoke(self, thread: str) -> str:
        """A run of the graph from its beginning; its id."""
        with self.module["app"]() as app:
            app.invoke({"log": []}, {"configurable": {"thread_id": thread}})
            return str(app.session.last_run_id)

    def change(self, old: str, new: str) -> None:
        """As its author does, between two processes."""
        self.path.write_text(self.path.read_text().replace(old, new))
        sys.modules.pop("thread_program", None)
        linecache.clearcache()

    @property
    def target(self) -> str:
        return f"{self.path}:app"

    def close(self) -> None:
        if hasattr(self.module["SAVER"], "close"):
            self.module["SAVER"].close()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Program]:
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    path = tmp_path / "thread_program.py"
    path.write_text(getattr(request, "param", KEPT) + GRAPH)
    monkeypatch.delitem(sys.modules, "thread_program", raising=False)
    made = Program(path)
    yield made
    made.close()
    monkeypatch.delitem(sys.modules, "thread_program", raising=False)


def test_a_thread_is_forked_resumed_and_merged_back(program: Program, ramify: Any, tmp_path: Path) -> None:
    ran = program.invoke("t")
    edited = tmp_path / "what-if"
    base = ramify("log", ran, "--json").json[-1]["id"]
    assert ramify("checkout", f"{ran}:base", edited).status == 0
    (edited / "mine").write_text("mine")
    fork = ramify("fork", base, "--files", edited, "--json").json["run"]
    told = ramify("resume", fork, "--app", program.target, "--json", "--quiet")
    assert told.status == 0, told.err
    assert told.json["result"]["log"][-1] == "first,last,left,mine,right", told.err
    said = ramify("merge", ran, fork)
    assert said.status == 0, said.err
    merged = said.out.strip()
    assert ramify("checkout", merged, tmp_path / "merged").status == 0
    assert sorted(path.name for path in (tmp_path / "merged").iterdir()) == ["first", "last", "left", "mine", "right"]


def test_a_fork_after_a_join_runs_only_what_comes_next(program: Program, ramify: Any) -> None:
    ran = program.invoke("t")
    fork = ramify("fork", f"{ran}~1", "--json").json["run"]
    told = ramify("resume", fork, "--app", program.target, "--json", "--quiet")
    assert told.json["result"]["log"] == ["write", "think", "left", "right", "first,last,left,right"], told.err
    assert [op["step"] for op in ramify("show", fork, "--json").json["operations"] if op["kind"] == "RUN"][
        -1
    ] == "last"
    assert ramify("ls", "--json").json[-1]["status"] == "done"


def test_a_checkpoint_inside_a_superstep_is_refused(program: Program, ramify: Any) -> None:
    ran = program.invoke("t")
    said = ramify("fork", f"{ran}:fork.superstep.0.0")
    assert (said.status, said.out) == (1, "")
    assert "inside a superstep" in said.err


def test_fork_of_a_lost_state_reports_it_and_recomputes_it(program: Program, ramify: Any, tmp_path: Path) -> None:
    ran = program.invoke("t")
    lost = ramify("show", f"{ran}~1", "--json").json["snapshot"]
    (tmp_path / "home" / "store" / "snapshots" / f"{lost}.json").unlink()
    said = ramify("fork", f"{ran}~1")
    assert said.status == 0, said.err
    assert f"{lost} is not in the store" in said.err and "a resume runs again the steps that made it" in said.err
    again = ramify("resume", "--app", program.target, "--json", "--quiet")
    assert again.json["result"]["log"][-1] == "first,last,left,right", again.err


def test_an_interrupt_is_answered(program: Program, ramify: Any, tmp_path: Path) -> None:
    ran = program.invoke("t")
    edited = tmp_path / "asking"
    ramify("checkout", f"{ran}:base", edited)
    (edited / "ask").write_text("")
    fork = ramify("fork", f"{ran}:base", "--files", edited, "--json").json["run"]
    asked = ramify("resume", fork, "--app", program.target, "--quiet")
    assert (asked.status, "go on?" in asked.err) == (3, True)
    answered = ramify("resume", fork, "--app", program.target, "--answer", '"yes"', "--json", "--quiet")
    assert answered.json["status"] == "done"
    assert ramify("checkout", fork, tmp_path / "done").status == 0
    assert (tmp_path / "done" / "last").read_text() == "yes"


def test_what_has_changed_between_the_nodes_since_is_told(program: Program, ramify: Any, tmp_path: Path) -> None:
    ran = program.invoke("t")
    told = ramify("explain", ran).out
    assert f"name it, `ramify --home {tmp_path / 'home'} explain {ran} --app FILE.py:NAME`" in told
    assert "are unchanged since the plan was compiled" in ramify("explain", ran, "--app", program.target).out
    program.change("return END", 'return "write" if len(state["log"]) < 2 else END')
    told = ramify("explain", ran, "--app", program.target).out
    assert "onward (" in told.partition("changed since: ")[2]
    assert "steps that may be affected: write\n" in told
    assert "the graph has changed since: its thread continues with the graph as it is" in told
    fork = ramify("fork", f"{ran}:base", "--json").json["run"]
    told = ramify("resume", fork, "--app", program.target)
    assert (told.status, "onward (" in told.err.partition("changed since: ")[2]) == (0, True), told.err


def test_a_thread_goes_back_to_a_checkpoint(program: Program, ramify: Any) -> None:
    ran = program.invoke("t")
    told = ramify("resume", ran, "--from", f"{ran}~1", "--app", program.target, "--json", "--quiet")
    assert told.json["result"]["log"][-1] == "first,last,left,right", told.err
    assert "root/fork.superstep.1.0" in [branch["branch"] for branch in ramify("tree", ran, "--json").json]


@pytest.mark.parametrize("program", [IN_MEMORY], indirect=True)
def test_a_thread_that_another_saver_keeps_is_refused(program: Program, ramify: Any) -> None:
    ran = program.invoke("t")
    for command in (("fork", ran), ("resume", ran, "--from", f"{ran}~1", "--app", program.target)):
        said = ramify(*command)
        assert (said.status, "saver" in said.err) == (1, True), said.err
        assert "Traceback" not in said.err


def test_an_app_is_looked_for_in_the_file_that_compiled_it(program: Program, ramify: Any) -> None:
    ran = program.invoke("t")
    said = ramify("resume", ran)
    assert (said.status, "--app FILE.py:NAME" in said.err) == (1, True)
    program.module["standing"] = program.module["app"]()
    assert ramify("resume", ran, "--quiet").status == 0
    assert ramify("resume", ran, "--app", f"{program.path}:graph").status == 1


@pytest.mark.parametrize(("stops", "listed"), [(None, "done"), (["last"], "interrupted"), (["left"], "interrupted")])
def test_a_thread_killed_after_its_last_commit_is_listed_as_done(
    stops: list[str] | None, listed: str, program: Program, ramify: Any, tmp_path: Path
) -> None:
    with program.module["app"]() as app:
        app.invoke({"log": []}, {"configurable": {"thread_id": "t"}}, interrupt_before=stops)

    async def as_killed() -> None:
        async with RunStore(tmp_path / "home" / "ramify.db", clock=time.time) as store:
            (run,) = await store.runs()
            await store.commit(run.id, update=RunUpdate(status=RunStatus.RUNNING))

    asyncio.run(as_killed())
    assert [run["status"] for run in ramify("ls", "--json").json] == [listed]


def test_a_file_that_invokes_its_graph_when_it_is_loaded_is_refused(program: Program, ramify: Any) -> None:
    ran = program.invoke("t")
    running = "made = app()\nmade.invoke({'log': []}, {'configurable': {'thread_id': 'again'}})\n"
    program.path.write_text(program.path.read_text() + running)
    del sys.modules["thread_program"]
    said = ramify("resume", ran)
    assert (said.status, "if __name__ == '__main__':" in said.err) == (1, True), said.err
    assert "made.invoke" in said.err
    assert len(ramify("ls", "--json").json) == 1


def _lost(program: Program, ramify: Any, home: Path, *numbers: int) -> str:
    """A thread that stands before its last node, of whose states some are gone, the newest first; its run."""
    with program.module["app"]() as app:
        app.invoke({"log": []}, {"configurable": {"thread_id": "t"}}, interrupt_before=["last"])
        ran = str(app.session.last_run_id)
    states = [one["snapshot"] for one in ramify("log", ran, "--json").json]
    for number in numbers:
        (home / "store" / "snapshots" / f"{states[number]}.json").unlink()
    return ran


def test_a_thread_whose_files_are_lost_goes_on(program: Program, ramify: Any, tmp_path: Path) -> None:
    """It says which level of recovery that took, and why; the journal says what it cost."""
    ran = _lost(program, ramify, tmp_path / "home", 0)
    told = ramify("resume", ran, "--app", program.target)
    assert told.status == 0 and "computed again in" in told.err and "computed again:" in told.err, told.err
    choices = ramify("explain", ran, "--app", program.target, "--json").json["choices"]
    assert [choice["chose"] for choice in choices] == ["compute again"]
    assert "computed again, for lost" in ramify("show", ran).out


def test_a_thread_whose_files_are_lost_says_where_it_can_go_on(program: Program, ramify: Any, tmp_path: Path) -> None:
    program.change("def side(name: str):\n    def node(state: State, sandbox: SyncSandbox) -> dict:", AMBIENT)
    program.close()
    program.module = Program(program.path).module
    ran = _lost(program, ramify, tmp_path / "home", 0, 1)
    told = ramify("resume", ran, "--app", program.target, "--quiet")
    assert told.status == 1 and "lost or damaged" in told.err, told.err
    back_to = told.err.partition("--from ")[2].partition("`")[0]
    again = ramify("resume", ran, "--from", back_to, "--app", program.target, "--json", "--quiet")
    assert again.status == 0, again.err
    assert again.json["result"]["log"][-1] == "first,last,left,right"


def test_looking_at_a_thread_loads_no_graph() -> None:
    program = "import sys, ramify.runtime.langgraph.thread.stored_thread; print('langgraph.channels' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"
