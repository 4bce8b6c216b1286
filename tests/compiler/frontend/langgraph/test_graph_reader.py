from __future__ import annotations

from typing import Any, Literal, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from ramify.compiler.errors import WorkflowError
from ramify.compiler.pipeline import compile_graph
from ramify.compiler.plan import Effect, OpKind, Plan


class State(TypedDict):
    x: int


class Sandbox:
    pass


def node(state: State) -> State:
    return state


def with_world(state: State, sandbox: Sandbox | None) -> State:
    return state


def graph_of(*nodes: str, **actions: Any) -> StateGraph[Any, Any, Any, Any]:
    graph: Any = StateGraph(State)
    for name in nodes:
        graph.add_node(name, actions.get(name, node))
    graph.add_edge(START, nodes[0])
    return graph


def all_entered(*nodes: str, **actions: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = graph_of(*nodes, **actions)
    for name in nodes[1:]:
        graph.add_edge(START, name)
    return graph


def plan_of(graph: object) -> Plan:
    return compile_graph(graph, name="flow", ref="app.py:graph").plan


def followers(plan: Plan, name: str) -> set[str]:
    (block,) = [block for block in plan.blocks if block.id == name]
    return {to for to, _ in block.exits} - {"superstep"}


def test_edges_branches_commands_and_waiting_edges_are_read() -> None:
    def goto(state: State) -> Command[Literal["b", "c"]]:
        return Command(goto="b")

    def choose(state: State) -> str:
        return "x"

    graph = graph_of("a", "b", "c", "d", a=goto)
    graph.add_conditional_edges("b", choose, {"x": "d", "y": END})
    graph.add_edge(["b", "c"], "d")
    plan = plan_of(graph)
    assert followers(plan, "entry") == {"node.a"}
    assert followers(plan, "node.a") == {"node.b", "node.c"}
    assert followers(plan, "node.b") == {"node.d", "exit"}
    assert followers(plan, "node.d") == {"exit"}
    assert plan.op("run.d").attrs == {"waits_for": ["b", "c"]}
    assert [b.op for b in plan.breaks] == ["break.unseen"]


def test_a_branch_without_a_path_map_is_a_graph_break() -> None:
    graph = graph_of("a", "b")
    graph.add_conditional_edges("a", lambda state: "b")
    graph.add_conditional_edges(START, lambda state: "b")
    plan = plan_of(graph)
    assert followers(plan, "node.a") == followers(plan, "entry") == {"node.a", "node.b", "exit"}
    assert {(b.op, b.where) for b in plan.breaks[1:]} == {("break.a", "node a"), ("break.start", "node __start__")}


def test_a_superstep_of_several_tasks_has_one_fork_one_merge_and_one_release() -> None:
    plan = plan_of(all_entered("a", "b"))
    fork, merge = plan.op("fork.superstep"), plan.op("merge.superstep")
    assert (fork.kind, merge.kind) == (OpKind.FORK, OpKind.MERGE)
    assert plan.release_of(fork) == plan.op("release.superstep")
    assert merge.attrs["fork"] == fork.id
    assert followers(plan, "superstep") == {"task.a", "task.b"}


def test_each_node_is_one_run_with_one_seal() -> None:
    plan = plan_of(all_entered("a", "b"))
    for name in "ab":
        run = plan.op(f"run.{name}")
        assert (run.step, run.site) == (name, None)
        seal = plan.after(run, OpKind.SEAL)
        assert seal is not None
        assert seal.id == f"seal.{name}"
    assert sum(op.kind is OpKind.RUN for op in plan.ops) == 2


def test_effects_of_nodes() -> None:
    class Worker:
        def __call__(self, state: State, sandbox: Sandbox) -> State:
            return state

    plan = plan_of(all_entered("plain", "world", "object", world=with_world, object=Worker()))
    assert {step.name: step.effect for step in plan.steps} == {
        "plain": Effect.UNKNOWN,
        "world": Effect.REVERTIBLE,
        "object": Effect.REVERTIBLE,
    }
    assert all(len(step.code_digest) == 64 for step in plan.steps)


def test_a_compiled_graph_and_its_builder_give_one_plan() -> None:
    graph = graph_of("a")
    before = plan_of(graph)
    assert not graph.compiled
    assert plan_of(graph.compile()) == before


def test_a_subgraph_is_one_run() -> None:
    plan = plan_of(graph_of("a", "sub", sub=graph_of("inner").compile()))
    assert plan.op("run.sub").attrs == {"subgraph": True}


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda graph: graph.edges.add(("a", "ghost")), "ghost"),
        (lambda graph: graph.add_conditional_edges("a", node, {"x": "ghost"}), "ghost"),
        (lambda graph: graph.edges.clear(), "nothing follows START"),
    ],
)
def test_a_graph_that_cannot_run_is_refused(break_it: Any, message: str) -> None:
    graph = graph_of("a")
    break_it(graph)
    with pytest.raises(WorkflowError, match=message):
        plan_of(graph)


def test_an_object_that_is_no_graph_is_refused() -> None:
    with pytest.raises(WorkflowError, match="function is no LangGraph graph"):
        plan_of(node)


def test_the_digest_follows_the_shape_of_the_graph() -> None:
    one, same, other = all_entered("a", "b"), all_entered("a", "b"), all_entered("a", "b")
    other.add_edge("a", "b")
    assert plan_of(one).code_digest == plan_of(same).code_digest != plan_of(other).code_digest


def test_a_graph_of_a_thousand_nodes_is_linear_in_its_edges() -> None:
    graph = graph_of(*(f"n{i}" for i in range(1000)))
    for i in range(999):
        graph.add_edge(f"n{i}", f"n{i + 1}")
    plan = plan_of(graph)
    assert sum(len(block.exits) for block in plan.blocks) < 6 * 1000
