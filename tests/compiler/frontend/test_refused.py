"""What bad input gets: an error that names the place and the mend."""

from __future__ import annotations

import linecache
import operator
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from ramify import Sandbox, step, workflow
from ramify.compiler.errors import WorkflowError
from ramify.compiler.pipeline import compile_graph, compile_workflow
from ramify.runtime.errors import NotInARun


class State(TypedDict):
    x: int


def node(state: State) -> State:
    return state


def graph_of(**nodes: Any) -> Any:
    graph: Any = StateGraph(State)
    for name, action in nodes.items():
        graph.add_node(name, action)
    graph.add_edge(START, next(iter(nodes)))
    return graph


def here(function: Any) -> str:
    return f"frontend/test_refused.py:{function.__code__.co_firstlineno}"


def compiled(graph: Any) -> Any:
    return compile_graph(graph, name="flow", ref="app.py:graph")


def test_a_node_that_nothing_leads_to() -> None:
    with pytest.raises(WorkflowError, match="nothing leads to node lost") as error:
        compiled(graph_of(first=node, lost=node))
    assert error.value.where == here(node)
    assert "add an edge" in error.value.mend


def test_a_node_that_only_a_command_may_lead_to_is_not_refused() -> None:
    def jump(state: State) -> Any:
        return Command(goto="far")

    assert compiled(graph_of(first=jump, far=node)).plan.op("run.far").step == "far"


def test_a_cycle_with_no_exit() -> None:
    graph = graph_of(a=node, b=node)
    graph.add_edge("a", "b")
    graph.add_edge("b", "a")
    with pytest.raises(WorkflowError, match="cycle with no exit") as error:
        compiled(graph)
    assert "leaves the cycle" in error.value.mend
    assert error.value.where == here(node)


def test_a_cycle_with_an_exit_is_none() -> None:
    def choose(state: State) -> Literal["a", "__end__"]:
        return "a"

    graph = graph_of(a=node, b=node)
    graph.add_edge("a", "b")
    graph.add_conditional_edges("b", choose)
    assert compiled(graph).plan.op("run.b")
    assert END == "__end__"


def test_a_loop_of_steps_that_nothing_leaves(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"sample.py:\d+:\d+ .*cycle with no exit.*`break`"):
        compile_source("""
@workflow
async def flow():
    while True:
        await edit()
""")


def test_two_steps_of_one_name(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"two steps are called same.*rename one of them"):
        compile_source("""
def made(module):
    async def same(sandbox: Sandbox): ...
    same.__module__ = module
    same.__qualname__ = "same"
    return step(same)
one, two = made("a"), made("b")
@workflow
async def flow():
    await one(); await two()
""")


def test_a_workflow_inside_a_step(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"step outer calls the workflow inner.*plain async function"):
        compile_source("""
@workflow
async def inner(): ...
@step
async def outer(sandbox: Sandbox):
    await inner()
@workflow
async def flow():
    await outer()
""")


@pytest.mark.parametrize("body", ["fork([1])", "await fork([1])", "for _ in [1]: fork([2])"])
def test_a_fork_that_is_not_entered(body: str, compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"sample\.py:\d+: fork\(...\) is not entered.*write `async with fork"):
        compile_source(f"@workflow\nasync def flow():\n    {body}\n")


@pytest.mark.parametrize(
    ("body", "dropped"),
    [
        ("one()", "one"),
        ("inner()", "inner"),
        ("helper()", "one"),
        ("async with fork([1]) as branches: branches.map(one)", "branches.map"),
        ("async with fork([1]) as branches: branches.best().adopt()", "branches.best().adopt"),
    ],
)
def test_what_nobody_waits_for(body: str, dropped: str, compile_source: Callable[..., Any]) -> None:
    program = """
@step
async def one(sandbox: Sandbox): ...
@workflow
async def inner(): await one()
def helper():
    one()
@workflow
{kind} flow():
    {body}
"""
    with pytest.raises(WorkflowError, match="is called without `await`") as error:
        compile_source(program.format(kind="async def", body=body))
    assert error.value.what.startswith(f"{dropped}(...)")
    assert f"`await {dropped}(...)`" in error.value.mend
    assert error.value.where.endswith(":19" if body == "helper()" else ":22")  # the program begins at 12
    compile_source(program.format(kind="def", body=body.replace("async with", "with")))  # it waits by itself


@pytest.mark.parametrize(
    ("imports", "read", "what"),
    [
        ("import time", "time.time()", "the clock"),
        ("from time import perf_counter", "perf_counter()", "the clock"),
        ("import datetime", "datetime.datetime.now()", "the clock"),
        ("from datetime import date", "date.today()", "the clock"),
        ("import random", "random.choice([1, 2])", "chance"),
        ("import secrets", "secrets.token_hex()", "chance"),
        ("from uuid import uuid4", "uuid4()", "chance"),
        ("import os", "os.environ['HOME']", "the host's environment"),
        ("import os", "os.getenv('HOME')", "the host's environment"),
    ],
)
def test_a_reused_step_that_reads_what_its_key_does_not_hold(
    compile_source: Callable[..., Any], imports: str, read: str, what: str
) -> None:
    text = f"""
{imports}
def helper():
    return {read}
@step(reuse=REUSE)
async def measured(sandbox: Sandbox):
    return helper()
@workflow
async def flow():
    await measured()
"""
    with pytest.raises(WorkflowError, match=f"measured is declared reuse=True, but it reads {what}") as error:
        compile_source(text.replace("REUSE", "True"))
    assert error.value.where.startswith("app/sample.py:")
    assert "hand the value in" in error.value.mend
    assert compile_source(text.replace("REUSE", "False")).plan.step("measured") is not None


@pytest.mark.parametrize(
    ("imports", "read", "what"),
    [
        ("import time", "time.time()", "the clock"),
        ("from datetime import datetime as now", "now.now()", "the clock"),
        ("import random as chance", "chance.random()", "chance"),
        ("from secrets import token_hex", "token_hex()", "chance"),
        ("from os import environ", "environ['HOME']", "the host's environment"),
    ],
)
def test_the_same_imported_inside_the_step(
    compile_source: Callable[..., Any], imports: str, read: str, what: str
) -> None:
    with pytest.raises(WorkflowError, match=f"measured is declared reuse=True, but it reads {what}"):
        compile_source(f"""
@step(reuse=True)
async def measured(sandbox: Sandbox):
    {imports}
    return {read}
@workflow
async def flow():
    await measured()
""")


@pytest.mark.parametrize(
    ("constant", "what"),
    [
        ("MODE = os.environ.get('MODE', 'none')", "the host's environment"),
        ("HOME: str = os.environ['HOME']\nMODE = HOME + '/x'", "the host's environment"),
        ("MODE = str(time.time())", "the clock"),
    ],
)
def test_a_constant_made_of_what_a_key_lacks(compile_source: Callable[..., Any], constant: str, what: str) -> None:
    text = f"""
import os, time
{constant}
@step(reuse=True)
async def measured(sandbox: Sandbox):
    return USED
@workflow
async def flow():
    await measured()
"""
    with pytest.raises(WorkflowError, match=f"measured is declared reuse=True, but it reads {what}"):
        compile_source(text.replace("USED", "MODE"))
    assert compile_source(text.replace("USED", "1")).plan.step("measured") is not None


@pytest.mark.parametrize(
    ("far", "what"),
    [
        ("import os\nMODE = os.environ.get('MODE', 'none')\ndef mode():\n    return MODE", "the host's environment"),
        ("import time\ndef mode():\n    return _now()\ndef _now():\n    return time.time()", "the clock"),
        ("def mode():\n    from random import random\n    return random()", "chance"),
        ("import sys\nclass Mode:\n    def get(self):\n        return sys.argv\nmode = Mode", "the host's process"),
        ("import os\nif os.getenv('FAST'):\n    mode = 1\nelse:\n    mode = 2", "the host's environment"),
    ],
)
def test_what_a_key_lacks_read_in_another_module_of_the_project(
    load: Callable[[Path], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: str, what: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a_far_one", "a_near_one"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "a_far_one.py").write_text(f"import time\n{far}\ndef unused():\n    return time.time()\n")
    (tmp_path / "a_near_one.py").write_text("import a_far_one\ndef asked():\n    return a_far_one.mode\n")
    text = """
from a_near_one import asked
from stand_in import Sandbox, step, workflow
@step(reuse=True)
async def measured(sandbox: Sandbox):
    return USED
@workflow
async def flow():
    await measured()
"""

    def compiled_with(used: str) -> Any:
        (tmp_path / "app.py").write_text(text.replace("USED", used))
        linecache.clearcache()
        return compile_workflow(load(tmp_path / "app.py").flow, ref="app.py:flow").plan

    with pytest.raises(WorkflowError, match=f"measured is declared reuse=True, but it reads {what}") as error:
        compiled_with("asked()")
    assert "a_far_one.py:" in error.value.where
    assert compiled_with("1").step("measured") is not None


def test_chance_with_a_seed_is_not_chance(compile_source: Callable[..., Any]) -> None:
    assert compile_source("""
import random
@step(reuse=True)
async def shuffled(sandbox: Sandbox):
    return random.Random(7).random()
@workflow
async def flow():
    await shuffled()
""").plan.step("shuffled")


# What LangGraph's schemas and nodes say


def fans(one: Any, other: Any, schema: Any = State) -> Any:
    graph: Any = StateGraph(schema)
    for name, action in (("first", node_of(schema)), ("left", one), ("right", other)):
        graph.add_node(name, action)
    graph.add_edge(START, "first")
    graph.add_edge("first", "left")
    graph.add_edge("first", "right")
    return graph


def node_of(schema: Any) -> Any:
    def first(state: Any) -> Any:
        return {}

    return first


def left(state: State) -> State:
    return {"x": state["x"] + 1}


def right(state: State) -> State:
    if state["x"] > 1:
        return {"x": 2}
    return {"x": 3}


def test_two_nodes_of_one_superstep_and_a_channel_without_a_reducer() -> None:
    with pytest.raises(WorkflowError, match="channel x has no reducer") as error:
        compiled(fans(left, right))
    assert f"first -> left ({here(left)}) and first -> right ({here(right)})" in error.value.what
    assert "Annotated" in error.value.mend


def test_such_nodes_are_not_refused_where_one_may_leave_the_channel_alone() -> None:
    def perhaps(state: State) -> Any:
        if state["x"]:
            return {"x": 1}

    class Joined(TypedDict):
        x: Annotated[int, operator.add]

    attrs = compiled(fans(left, perhaps)).plan.op("run.left").attrs
    assert attrs == {"reads": ["x"], "writes": ["x"], "reads_by": "syntax"}
    assert compiled(fans(left, right, Joined))
    later = fans(left, right)
    later.nodes["right"].defer = True
    assert compiled(later)


def test_a_reducer_that_cannot_join_what_its_channel_holds() -> None:
    class Bad(TypedDict):
        x: int
        found: Annotated[dict, operator.add]  # line: of this field

    with pytest.raises(WorkflowError, match="reducer add of channel found raises on two of dict") as error:
        compiled(graph_of_schema(Bad))
    assert error.value.where == f"frontend/test_refused.py:{line_of('# line: of this field')}"


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def graph_of_schema(schema: Any) -> Any:
    graph: Any = StateGraph(schema)
    graph.add_node("only", node_of(schema))
    graph.add_edge(START, "only")
    return graph


def test_a_reducer_of_the_wrong_shape_is_refused_by_langgraph_itself() -> None:
    class Bad(TypedDict):
        x: Annotated[int, lambda one: one]

    with pytest.raises(ValueError, match="Invalid reducer signature"):
        StateGraph(Bad)


def test_state_that_no_checkpoint_can_keep() -> None:
    class Bad(TypedDict):
        line: socket.socket | None  # line: of the socket

    with pytest.raises(WorkflowError, match="channel line holds a socket, which no checkpoint can keep") as error:
        compiled(graph_of_schema(Bad).compile(checkpointer=InMemorySaver()))
    assert error.value.where == f"frontend/test_refused.py:{line_of('# line: of the socket')}"
    assert compiled(graph_of_schema(Bad).compile()), "nothing is kept without a checkpointer, as in LangGraph"


def test_a_world_in_the_state_is_refused_with_and_without_a_checkpointer() -> None:
    class Bad(TypedDict):
        world: Sandbox

    with pytest.raises(WorkflowError, match="channel world holds a Sandbox"):
        compiled(graph_of_schema(Bad))


def test_duplicate_names_of_nodes_are_refused_by_langgraph_itself() -> None:
    with pytest.raises(ValueError, match="Node `a` already present"):
        graph_of(a=node).add_node("a", node)


def a_world() -> Sandbox:
    return Sandbox.__new__(Sandbox)


def test_a_node_that_holds_a_world_in_its_closure() -> None:
    world = a_world()

    def holds(state: State) -> Any:
        return {"x": len(str(world))}

    with pytest.raises(WorkflowError, match="node only holds a world in world") as error:
        compiled(graph_of(only=holds))
    assert error.value.where == f"frontend/test_refused.py:{holds.__code__.co_firstlineno + 1}"


def test_a_node_that_calls_a_step_or_a_workflow() -> None:
    @step
    async def ours(sandbox: Sandbox) -> None: ...

    @workflow
    async def flow() -> None: ...

    async def calls_step(state: State) -> Any:
        await ours()

    async def calls_workflow(state: State) -> Any:
        await flow()

    for name, action in (("step ours", calls_step), ("workflow flow", calls_workflow)):
        with pytest.raises(WorkflowError, match=f"node only calls the {name}") as error:
            compiled(graph_of(only=action))
        assert error.value.where == f"frontend/test_refused.py:{action.__code__.co_firstlineno + 1}"


# What the decorators' steps say


def test_two_steps_of_one_name_in_one_file(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"two steps are called same.*rename one of them"):
        compile_source("""
async def first(sandbox: Sandbox): ...
async def second(sandbox: Sandbox): ...
first.__qualname__ = second.__qualname__ = "same"
first, second = step(first), step(second)
@workflow
async def flow():
    await first(); await second()
""")


@pytest.mark.parametrize(
    ("signature", "what"),
    [
        ("(sandbox: Sandbox, lock: threading.Lock)", "takes, as lock, a Lock"),
        ("(sandbox: Sandbox, files: list[IO[str]])", "takes, as files, a IO"),
        ("(sandbox: Sandbox, key: Callable[[int], int])", "takes, as key, a Callable"),
        ("(sandbox: Sandbox) -> Generator[int, None, None]", "returns a Generator"),
    ],
)
def test_a_step_that_takes_or_gives_what_cannot_be_kept(
    compile_source: Callable[..., Any], signature: str, what: str
) -> None:
    with pytest.raises(WorkflowError, match=f"step bad {what}") as error:
        compile_source(f"""
import threading
from typing import IO, Callable, Generator
@step
async def bad{signature}: ...
@workflow
async def flow():
    await bad()
""")
    assert error.value.where.startswith("app/sample.py:")
    assert "hand over what it is made from" in error.value.mend


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return lambda: sandbox.path", "hands out a function that holds its world sandbox"),
        ("def later(): return sandbox.path\n    return [later]", "hands out a function that holds its world sandbox"),
        ("return kept.path", "holds a world in kept"),
    ],
)
def test_a_step_that_holds_a_world_beyond_its_time(compile_source: Callable[..., Any], body: str, what: str) -> None:
    with pytest.raises(WorkflowError, match=f"step bad {what}") as error:
        compile_source(f"""
Sandbox.__ramify_world__ = True
kept = Sandbox()
@step
async def bad(sandbox: Sandbox):
    {body}
@workflow
async def flow():
    await bad()
""")
    assert error.value.where.startswith("app/sample.py:")


def test_a_step_called_outside_a_workflow_says_where() -> None:
    @step
    async def alone(sandbox: Sandbox) -> None: ...

    with pytest.raises(NotInARun, match=r"alone' was called at frontend/test_refused.py:\d+ outside .*@workflow"):
        alone()
