"""The code parts of a graph's plan: of nodes of every kind, and of what runs between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.change_impact import changed_parts
from ramify.compiler.pipeline import compile_graph
from ramify.compiler.plan import Plan

GRAPH = """
from functools import partial
from typing import Annotated, Literal, TypedDict
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode

def joined(left, right):
    return left + right

class State(TypedDict):
    log: Annotated[list, joined]

def helper():
    return "of a helper"

def with_helper(state, given):
    return {"log": [given()]}

def plain(state):
    return {"log": ["plain"]}

def inside(state):
    return {"log": ["inside"]}

def chooses_inside(state) -> Literal["x", "__end__"]:
    return "__end__"

class Node:
    def __call__(self, state):
        return {"log": ["object"]}

class Own(Runnable):
    def invoke(self, given, config=None):
        return {"log": ["own"]}

@tool
def look(path: str) -> str:
    "Looks."
    return told(path)

def told(path):
    return path

def route(state):
    return chosen(state)

def chosen(state):
    return "partial"

inner = StateGraph(State).add_node("x", inside).add_edge(START, "x").add_conditional_edges("x", chooses_inside)
graph = StateGraph(State)
graph.add_node("plain", plain)
graph.add_node("partial", partial(with_helper, given=helper))
graph.add_node("chain", RunnableLambda(plain) | RunnableLambda(lambda update: {**update}))
graph.add_node("inner", inner.compile())
graph.add_node("one", lambda state: {"log": ["one"]})
graph.add_node("other", lambda state: {"log": ["other"]})
graph.add_node("object", Node())
graph.add_node("tools", ToolNode([look]))
graph.add_node("own", Own())
graph.add_edge(START, "plain")
graph.add_conditional_edges("plain", route, ["partial", "chain", END])
for start, end in (("partial", "chain"), ("chain", "inner"), ("inner", "one"), ("one", "other"), ("other", "object"),
                   ("object", "own"), ("own", "tools")):
    graph.add_edge(start, end)
"""
EVERY = ("chain", "inner", "object", "one", "other", "own", "partial", "plain", "tools")


def plan_of(load: Callable[[Path], Any], path: Path, text: str) -> Plan:
    path.write_text(text)
    return compile_graph(load(path).graph, name="graph", ref="app.py:graph").plan


@pytest.mark.parametrize(
    ("old", "new", "part", "affected", "steps"),
    [
        ("return chosen(state)", "return chosen({**state})", "route", ("chain", "partial"), []),
        ('return "partial"', 'return "chain"', "chosen", ("chain", "partial"), []),
        ("left + right", "right + left", "joined", EVERY, ["inner"]),
        ('"of a helper"', '"of another"', "helper", ("partial",), ["partial"]),
        ("[given()]", "[given(), 1]", "with_helper", ("partial",), ["partial"]),
        ('["plain"]', '["else"]', "plain", ("chain", "plain"), ["plain", "chain"]),
        ("{**update}", "{'log': []}", "<lambda>", ("chain",), ["chain"]),
        ('["inside"]', '["else"]', "inside", ("inner",), ["inner"]),
        ('return "__end__"', 'return "x"', "chooses_inside", ("inner",), ["inner"]),
        ('["one"]', '["1"]', "<lambda> 2", ("one",), ["one"]),
        ('["other"]', '["2"]', "<lambda> 3", ("other",), ["other"]),
        ('["object"]', '["3"]', "Node.__call__", ("object",), ["object"]),
        ('["own"]', '["4"]', "Own.invoke", ("own",), ["own"]),
        ("return path", "return path * 2", "told", ("tools",), ["tools"]),
    ],
)
def test_changed_code_is_named_with_the_nodes_it_may_affect(
    load: Callable[[Path], Any],
    tmp_path: Path,
    old: str,
    new: str,
    part: str,
    affected: tuple[str, ...],
    steps: list[str],
) -> None:
    assert GRAPH.count(old) == 1
    before = plan_of(load, tmp_path / "app.py", GRAPH)
    after = plan_of(load, tmp_path / "app.py", GRAPH.replace(old, new))
    assert before.code_digest != after.code_digest
    assert [(each.name, each.steps) for each in changed_parts(before.code, after.code)] == [(part, affected)]
    digests = {step.name: step.code_digest for step in after.steps}
    assert [step.name for step in before.steps if digests[step.name] != step.code_digest] == steps


def test_branches_and_reducers_of_libraries_are_no_parts(load: Callable[[Path], Any], tmp_path: Path) -> None:
    text = GRAPH.replace("def joined", "from langgraph.graph.message import add_messages as joined\ndef joins")
    plan = plan_of(load, tmp_path / "app.py", text)
    assert {part.where.partition("/")[0] for part in plan.code} >= {tmp_path.name}
    assert not any(part.where.startswith("graph/message.py") for part in plan.code)
