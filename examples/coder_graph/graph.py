"""The graph: test, then plan; act and use tools until the target passes; test again, until all tests pass.

        START → test → plan → act ⇄ tools
                  ↑______________│

Nodes are plain functions. A parameter annotated `Sandbox` is the node's world; `llm` is the model of the app.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Literal, TypedDict

from langgraph.graph import START, StateGraph

from examples.coder_graph.edits import Edit, applied, candidates, shown
from ramify import Sandbox, llm
from ramify.runtime.errors import CommandFailed

PYTEST = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-rf"]
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # this environment's plugins are slow, and not the project's
OPTIONS = 12  # the most lettered options that a small model can tell apart


class State(TypedDict, total=False):
    failing: list[str]
    target: str  # the test being worked on
    edit: Edit | None  # the tool call: an edit to try; None: no edit is left
    tried: list[str]  # edits that did not help
    given_up: list[str]
    tree: str  # a digest of the sources in the last run of the tests


async def test(state: State, sandbox: Sandbox) -> State:
    run = await sandbox.run(PYTEST, env=PLAIN, timeout=60)
    failing = re.findall(r"^FAILED (\S+)", run.stdout, re.MULTILINE)
    if not run.ok and not failing:  # no test ran: pytest may not be installed
        raise CommandFailed(run)
    return {"failing": failing, "tree": digest(sandbox.path)}


async def plan(state: State) -> State:
    tests = open_tests(state)
    picked = await llm.choose("These tests of a Python library fail. Which one is the easiest to repair?", tests[:20])
    return {"target": tests[picked.best], "tried": []}


async def act(state: State, sandbox: Sandbox) -> State:
    file, name = module_of(state["target"]), state["target"].partition("::")[2]
    source = (sandbox.path / file).read_text()
    edits = [edit for edit in candidates(file, source, name) if shown(edit) not in state["tried"]][:OPTIONS]
    if not edits:
        return {"edit": None, "given_up": [*state.get("given_up", []), state["target"]]}
    question = f"The test {name} fails.\n\n```python\n{source}```\n\nWhich edit makes it pass?"
    ranked = await llm.choose(question, [shown(edit) for edit in edits])
    return {"edit": edits[ranked.best]}


async def tools(state: State, sandbox: Sandbox) -> State:
    """Make the edit and run the target test. An edit that does not help is undone."""
    edit = state["edit"]
    assert edit is not None
    path = sandbox.path / edit["file"]
    source = path.read_text()
    path.write_text(applied(source, edit))
    if (await sandbox.run([*PYTEST, state["target"]], env=PLAIN, timeout=60)).ok:
        return {"target": "", "failing": [test for test in state["failing"] if test != state["target"]]}
    path.write_text(source)
    return {"tried": [*state["tried"], shown(edit)]}


def after_test(state: State) -> Literal["plan", "__end__"]:
    return "plan" if open_tests(state) else "__end__"


def after_act(state: State) -> Literal["tools", "test"]:
    return "tools" if state["edit"] else "test"


def after_tools(state: State) -> Literal["act", "test"]:
    return "act" if state["target"] else "test"


def open_tests(state: State) -> list[str]:
    return [test for test in state["failing"] if test not in state.get("given_up", [])]


def module_of(test: str) -> str:
    return re.sub(r"^tests/test_(\w+)\.py.*", r"notes/\1.py", test)


def digest(tree: Path) -> str:
    sources = sorted(tree.rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def build() -> StateGraph[State]:
    graph = StateGraph(State)
    for node in (test, plan, act, tools):
        graph.add_node(node)
    graph.add_edge(START, "test")
    graph.add_edge("plan", "act")
    graph.add_conditional_edges("test", after_test)
    graph.add_conditional_edges("act", after_act)
    graph.add_conditional_edges("tools", after_tools)
    return graph
