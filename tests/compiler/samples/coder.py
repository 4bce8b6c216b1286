"""A LangGraph graph: plan, an act loop over a conditional edge, two checks in one superstep, a waiting edge."""

from __future__ import annotations

from typing import Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from stand_in import Effect, Sandbox, step


class State(TypedDict):
    done: bool


def plan(state: State) -> State:
    return state


def act(state: State, sandbox: Sandbox) -> State:
    return state


def test(state: State, sandbox: Sandbox) -> State:
    return state


def lint(state: State) -> State:
    return state


@step(effect=Effect.PURE)
async def report(state: State) -> State:
    return state


def again(state: State) -> Literal["act", "test", "lint"]:
    return "act"


graph = StateGraph(State)
graph.add_node("plan", plan)
graph.add_node("act", act)
graph.add_node("test", test)
graph.add_node("lint", lint)
graph.add_node("report", report)
graph.add_edge(START, "plan")
graph.add_edge("plan", "act")
graph.add_conditional_edges("act", again)
graph.add_edge(["test", "lint"], "report")
graph.add_edge("report", END)
