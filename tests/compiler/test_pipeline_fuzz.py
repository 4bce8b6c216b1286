"""A workflow of any shape is compiled, or refused with a place and a correction. No front end crashes."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

from ramify.compiler.errors import CompileError
from ramify.compiler.pipeline import Compilation, compile_graph
from ramify.compiler.plan import Plan
from tests.compiler.graph_parser import parse_graph
from tests.samples import sample

calm = settings(
    deadline=None,
    max_examples=sample(10, 25),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


def is_whole(compilation: Compilation) -> None:
    """Check that every form reads back. The verifier has run after each pass."""
    assert parse_graph(compilation.ir_text()) == compilation.ssg
    assert Plan.from_json(compilation.plan.to_json()) == compilation.plan
    assert compilation.dot().endswith("}\n")
    assert compilation.mermaid().startswith("flowchart TD")


def compiled_or_refused(make: Callable[[], Compilation]) -> None:
    try:
        compilation = make()
    except CompileError as error:
        assert error.where
        assert error.mend
    else:
        is_whole(compilation)


class State(TypedDict, total=False):
    a: int
    b: list[Any]


def plain(state: State) -> Any:
    return {"a": state.get("a", 0)}


def sends(state: State) -> Any:
    return [Send("n0", state)]


def jumps(state: State) -> Command[Literal["n0", "__end__"]]:
    return Command(goto="n0")


def nothing(state: State) -> None: ...


class Called:
    async def __call__(self, state: State) -> Any:
        return {}


ACTIONS = (plain, jumps, nothing, Called(), lambda state: {"b": [1]})


def graph_of(seed: int, depth: int = 0) -> Any:
    """Make any graph: chains, fans, cycles, islands, waiting edges, branches with or without path maps."""
    draw = random.Random(seed)
    graph: Any = StateGraph(State)
    names = [f"n{i}" for i in range(draw.randint(1, 9))]
    for name in names:
        nested = depth < 3 and draw.random() < 0.2
        action = graph_of(draw.randrange(10**6), depth + 1) if nested else draw.choice(ACTIONS)
        if nested:
            if "n0" not in [end for start, end in action.edges if start == START]:
                action.add_edge(START, "n0")
            action = action.compile()
        graph.add_node(name, action, defer=draw.random() < 0.1)
    for _ in range(draw.randint(0, 2 * len(names))):
        one, other = draw.choice([START, *names]), draw.choice([*names, END])
        if (one, other) != (START, END):
            graph.add_edge(one, other)
    for name in names:
        match draw.randrange(8):
            case 0:
                graph.add_conditional_edges(name, sends)
            case 1:
                graph.add_conditional_edges(name, lambda state: "x", {"x": draw.choice(names), "y": END})
            case 2:
                graph.add_edge(draw.sample(names, draw.randint(1, len(names))), draw.choice(names))
    return graph


@calm
@given(st.integers(0, 10**9))
def test_graphs_of_any_shape(seed: int) -> None:
    try:
        graph = graph_of(seed)
    except ValueError:  # LangGraph itself refuses an inner graph
        return
    compiled_or_refused(lambda: compile_graph(graph, name="flow", ref="app.py:graph"))


CALLS = ("edit(x)", "test()", "score(x)", "mail()", "llm.chat('?')", "llm.propose('?', n=2)", "helper(x)", "x()")


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0, loop: bool = False, forks: int = 0) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines += draw(statements(depth, loop, forks))
    return lines


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@st.composite
def statements(draw: st.DrawFn, depth: int, loop: bool, forks: int) -> list[str]:
    call = draw(st.sampled_from(CALLS))
    flat = [
        f"x = await {call}",
        f"x = [await {call} for _ in x]",
        f"await asyncio.gather({call}, {call})",
        f"x and await {call}",
        f"async def inner(y):\n    return await {call}\nawait inner(x)",
        "return x",
        "raise ValueError",
        f"f = lambda: {call}\nawait f()",
        *(["break", "continue"] if loop else []),
        *([f"x = await fork{forks}.map(edit)", f"await fork{forks}[0].adopt()"] if forks else []),
    ]
    if depth > 3 or draw(st.booleans()):
        return draw(st.sampled_from(flat)).splitlines()
    inner = indented(draw(blocks(depth + 1, loop, forks)))
    match draw(st.integers(0, 7)):
        case 0:
            return ["if x:", *inner, "else:", *indented(draw(blocks(depth + 1, loop, forks)))]
        case 1:
            return ["while x:", *indented(draw(blocks(depth + 1, True, forks)))]
        case 2:
            return ["while True:", *indented(draw(blocks(depth + 1, True, forks)))]
        case 3:
            rest = indented(draw(blocks(depth + 1, loop, forks)))
            return ["try:", *inner, "except OSError:", *rest, "finally:", "    await test()"]
        case 4:
            body = indented(draw(blocks(depth + 1, False, forks + 1)))
            return [f"async with fork(x) as fork{forks + 1}:", *body]
        case 5:
            return ["match x:", "    case [1, *rest]:", *indented(inner), "    case _:", *indented(inner)]
        case 6:
            return ["for x in [1, 2]:", *indented(draw(blocks(depth + 1, True, forks))), "else:", "    await test()"]
        case _:
            return ["with open(x) as file:", *inner]


@calm
@given(blocks())
def test_workflows_of_any_shape(compile_source: Callable[[str], Compilation], lines: list[str]) -> None:
    helper = "async def helper(x):\n    await edit(x)\n    if x:\n        await helper(x)\n"
    text = helper + "@workflow\nasync def flow(x=None):\n" + "\n".join(indented(lines)) + "\n"
    compiled_or_refused(lambda: compile_source(text))


@pytest.mark.parametrize(("depth", "opening"), [(90, "if x:"), (18, "while x:"), (15, "async with fork(x):")])
def test_deeply_nested_workflows(compile_source: Callable[[str], Compilation], depth: int, opening: str) -> None:
    """Nested as deeply as Python's own parser accepts."""
    body = [" " * (4 + level) + opening for level in range(depth)]
    text = "\n".join(["@workflow", "async def flow(x=None):", *body, " " * (4 + depth) + "await edit(x)", ""])
    is_whole(compile_source(text))


@pytest.mark.parametrize("shape", ["wide", "deep", "ring"])
def test_large_graphs(shape: str) -> None:
    graph: Any = StateGraph(State)
    names = [f"n{i}" for i in range(200)]
    for name in names:
        graph.add_node(name, nothing)
    graph.add_edge(START, names[0])
    for one, other in pairwise(names):
        graph.add_edge(names[0] if shape == "wide" else one, other)
    graph.add_conditional_edges(names[-1], lambda state: "x", {"x": names[0] if shape == "ring" else END, "y": END})
    is_whole(compile_graph(graph, name="flow", ref="app.py:graph"))
