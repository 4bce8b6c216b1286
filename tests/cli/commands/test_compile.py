from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
from ramify import Sandbox, step, workflow

@step
async def look(sandbox: Sandbox) -> int:
    return 1

@workflow(deadline="1m")
async def go() -> int:
    return await look()
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "compile_target.py").write_text(SOURCE)
    return f"{tmp_path}/compile_target.py:go"


def test_the_plan_by_itself(ramify: Any, target: str) -> None:
    plan = ramify("compile", target).json
    assert (plan["name"], plan["deadline_s"], plan["frontend"]) == ("go", 60.0, "decorators")


def test_several_forms_under_their_names(ramify: Any, target: str) -> None:
    said = ramify("compile", target, "--emit", "spec,ir,dot")
    assert said.status == 0
    assert [line for line in said.out.splitlines() if line in ("# spec", "# ir", "# dot")] == [
        "# spec",
        "# ir",
        "# dot",
    ]
    assert "digraph" in said.out


def test_several_forms_into_a_folder(ramify: Any, target: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert ramify("compile", target, "--emit", "plan,dot", "-o", out).out == ""
    assert sorted(path.name for path in out.iterdir()) == ["plan.json", "ssg.dot"]
    assert json.loads((out / "plan.json").read_text())["name"] == "go"


def test_a_function_that_is_no_workflow(ramify: Any, target: str) -> None:
    said = ramify("compile", target.replace(":go", ":look"))
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("ramify: ")


GRAPH = """
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict):
    n: int

def one(state: State) -> State:
    return {"n": 1}

def build() -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node("one", one)
    graph.add_edge(START, "one")
    graph.add_edge("one", END)
    return graph

graph = build()

def broken() -> StateGraph[State]:
    raise ValueError("not today")
"""


@pytest.mark.parametrize("name", ["graph", "build"])
def test_a_graph_or_what_makes_one(ramify: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "graph_target.py").write_text(GRAPH)
    plan = ramify("compile", f"{tmp_path}/graph_target.py:{name}").json
    assert (plan["name"], plan["frontend"]) == (name, "langgraph")
    assert "one" in [step["name"] for step in plan["steps"]]


def test_a_builder_that_raises_is_the_users(ramify: Any, tmp_path: Path) -> None:
    (tmp_path / "graph_target.py").write_text(GRAPH)
    said = ramify("compile", f"{tmp_path}/graph_target.py:broken")
    assert said.status == 1
    assert 'raise ValueError("not today")' in said.err
    assert "could not make its graph" in said.err


def test_only_optional_passes_can_be_omitted(ramify: Any, target: str) -> None:
    assert "lookahead" in ramify("compile", target).json["passes"]
    assert "lookahead" not in ramify("compile", target, "--without", "lookahead").json["passes"]
    said = ramify("compile", target, "--without", "effects")
    assert said.status == 2
    assert "choose from placement" in said.err


def test_mermaid(ramify: Any, target: str) -> None:
    assert ramify("compile", target, "--emit", "mermaid").out.startswith("flowchart TD")


def test_the_schema_of_plans_needs_no_runs(ramify: Any, target: str) -> None:
    assert ramify("compile", target, "--emit", "schema").json["title"] == "A plan of Ramify"


def test_a_workflow_that_has_run_is_planned_by_its_runs(ramify: Any, target: str, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    for number in range(300):  # which a seal of a copy reads, and the step does not
        (workspace / str(number)).touch()
    learned = target.replace(":go", ":asks")
    path = Path(target.rpartition(":")[0])
    path.write_text(SOURCE + ASKS)
    sealed = [op["kind"] for op in ramify("compile", learned).json["ops"]].count("SEAL")
    for _ in range(6):
        assert ramify("run", learned, "--sandbox", "copy", "--workspace", workspace).status == 0
    after = ramify("compile", learned).json
    assert [op["kind"] for op in after["ops"]].count("SEAL") == sealed - 1, "to write a line is less than a seal"
    assert [op["kind"] for op in ramify("compile", learned, "--unmeasured").json["ops"]].count("SEAL") == sealed


ASKS = """
@step
async def note(sandbox: Sandbox, line: str) -> None:
    (sandbox.path / "notes").write_text(line)

@workflow
async def asks() -> None:
    await note("one")
    await note("two")
"""


THINKS = """
from ramify import llm, step, workflow

@workflow
async def go(rounds: int) -> str:
    said = ""
    for _ in range(rounds):
        said = await llm.chat(said)
    return said
"""


def test_a_gateways_history_is_expected_of_what_never_ran_here(
    ramify: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramify.compiler.plan import OpId, StagePlan
    from ramify.runtime.estimates import gateway_history

    def known(workflow: str, gateway: str, *, key: str | None = None) -> tuple[StagePlan, ...]:
        assert (workflow, gateway, key) == ("go", "http://gateway", "k")
        return (StagePlan(OpId(""), 1, 50.0, 20.0, 0.5, 2.0, 0.4), StagePlan(OpId(""), 1, 70.0, 30.0, 0.5, 3.0, 1.0))

    monkeypatch.setattr(gateway_history, "gateway_stages", known)
    (tmp_path / "thinks.py").write_text(THINKS)
    target = f"{tmp_path}/thinks.py:go"
    assert ramify("compile", target).json["expected"] == []
    plan = ramify("compile", target, "--history", "http://gateway", "--api-key", "k").json
    assert [(s["seconds"], s["share"]) for s in plan["expected"]] == [(2.0, 0.4), (3.0, 1.0)]
    (asks,) = {s["op"] for s in plan["expected"]}
    assert asks in {op["id"] for op in plan["ops"]}, "one operation makes all calls"


def test_a_gateway_that_knows_nothing_of_it_is_said(
    ramify: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramify.runtime.estimates import gateway_history

    monkeypatch.setattr(gateway_history, "gateway_stages", lambda *_, **__: ())
    done = ramify("compile", target, "--history", "http://gateway")
    assert done.status == 0 and "knows nothing about" in done.err and "knows nothing about" not in done.out
    assert done.out == ramify("compile", target).out


def test_a_history_is_asked_of_a_base_url(ramify: Any, target: str) -> None:
    said = ramify("compile", target, "--history", "nonsense")
    assert said.status == 2 and "--history: 'nonsense' is not a base URL" in said.err
