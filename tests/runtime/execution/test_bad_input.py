"""Errors for bad input, in both front ends, name the place and the fix."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import ramify
from ramify import Runtime, Sandbox, SyncSandbox, step, workflow
from ramify.runtime.errors import NotInARun, RunFailed, RunNotFound
from ramify.runtime.execution.forks import Outcomes

HELD: list[Any] = []
LOCKS = [threading.Lock()]
WORKFLOWS: dict[str, Any] = {}


class State(TypedDict, total=False):
    n: Any


def raising(held: Any, update: Any) -> Any:
    raise KeyError("no such key")


class Reduced(TypedDict, total=False):
    n: Annotated[int, raising]


def node(state: State) -> State:
    return {"n": 1}


def hands_out(state: State, sandbox: SyncSandbox) -> State:
    return {"n": lambda: sandbox.path}


def gives_a_lock(state: State) -> State:
    return {"n": threading.Lock()}


async def runs_a_step(state: State) -> State:
    return {"n": await WORKFLOWS["step"]()}


def graph(*edges: tuple[str, str], schema: Any = State, **nodes: Any) -> Any:
    made: Any = StateGraph(schema)
    for name, action in nodes.items():
        made.add_node(name, action)
    for edge in ((START, next(iter(nodes))), *edges):
        made.add_edge(*edge)
    return made


@step
async def plain(sandbox: Sandbox, value: Any = None) -> Any:
    return value


@step(name="plain")
async def plain_too(sandbox: Sandbox) -> None: ...


@step
async def a_lock(sandbox: Sandbox) -> Any:
    return threading.Lock()


@step
async def holds(sandbox: Sandbox) -> None:
    HELD.append(sandbox)


@step
async def uses(sandbox: Sandbox) -> None:
    await HELD[-1].run("true")


@step
async def calls_a_workflow(sandbox: Sandbox) -> None:
    await WORKFLOWS["inner"]()


@workflow
async def inner() -> None: ...


WORKFLOWS |= {"inner": inner, "step": plain}


@workflow
async def two_of_a_name() -> None:
    await plain()
    await plain_too()


@workflow
async def without_exit() -> None:
    while True:
        await plain()


@workflow
async def gets_a_lock() -> None:
    await a_lock()


@workflow
async def hands_a_lock() -> None:
    await plain(threading.Lock())


@workflow
async def ends_with_a_lock() -> Any:
    return threading.Lock()


@workflow
async def holds_a_world() -> None:
    await holds()
    await uses()


@workflow
async def nests() -> None:
    await calls_a_workflow()


class Agent:
    @step
    async def acts(self, sandbox: Sandbox) -> None: ...


@workflow
async def calls_a_method() -> None:
    await Agent().acts()


@workflow
async def forgets_to_await() -> None:
    begun: Any = plain()
    try:
        await plain(begun)
    finally:
        begun.close()


@workflow
async def awaits_twice() -> None:
    begun = plain(1)
    await begun
    await begun


@workflow
async def hands_what_holds_itself() -> None:
    value: dict[str, Any] = {"deep": [{}]}
    value["deep"][0]["up"] = value
    await plain(value)


@workflow
async def hands_what_is_deep() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    await plain(value)


@workflow
async def hands_what_is_deep_and_shared() -> None:
    value: list[Any] = []
    for _ in range(1000):
        value = [value, value]
    await plain(value)


@workflow
async def forks(items: Any) -> None:
    async with ramify.fork(items):
        pass


@workflow
async def forks_locks() -> None:
    async with ramify.fork(LOCKS):
        pass


@workflow
async def forks_and_asks(how: str) -> None:
    opened: Any = ramify.fork([1, 2])
    if how == "map":
        await opened.map(plain)
    for _ in opened if how == "for" else await opened:
        pass


@workflow
async def hands_a_fork() -> None:
    opened: Any = ramify.fork([1, 2])
    await plain(opened)


def at(thing: Any) -> str:
    """The line of the function's `def`."""
    lines, first = inspect.getsourcelines(inspect.unwrap(thing))
    decorated = next(number for number, line in enumerate(lines) if "def " in line)
    return f"execution/test_bad_input.py:{first + decorated}"


def line(thing: Any, after: int) -> str:
    """The line so many lines after the function's `def`."""
    file, number = at(thing).split(":")
    return f"{file}:{int(number) + after}"


FOUND: dict[str, tuple[Any, str, str]] = {
    "a cycle of steps": (without_exit, "execution/test_bad_input.py:", "leave the loop by `break`"),
    "two steps of one name": (two_of_a_name, f"{at(plain)} and at {at(plain_too)}", "rename one of them"),
    "no reducer": (
        graph(("a", "b"), ("a", "c"), a=lambda state: {}, b=node, c=node),
        f"a -> b ({at(node)}) and a -> c",
        "give n a reducer",
    ),
    "a reducer that raises": (graph(a=node, schema=Reduced), f"{at(raising)}: reducer", "make it join"),
    "a channel that cannot be kept": (graph(a=gives_a_lock), "channel 'n'", "return plain values"),
    "a result that cannot be kept": (gets_a_lock, "step 'a_lock': its result", "Pass JSON values"),
    "an argument that cannot be kept": (hands_a_lock, "step 'plain': arguments['value']", "Pass JSON values"),
    "a workflow's result": (ends_with_a_lock, "'ends_with_a_lock' raised NotSerialisable: its", "Pass JSON values"),
    "a closure over a node's world": (graph(a=hands_out), "test_bad_input.py:", "return what was read"),
    "a world beyond its step": (holds_a_world, "step 'uses'", "do all its work inside the step"),
    "a workflow in a step": (nests, "workflow 'inner' was called in step 'calls_a_workflow'", "from a workflow"),
    "a step awaited twice": (awaits_twice, f"{line(awaits_twice, 3)}: the awaitable of a step", "keep its result"),
    "a step not awaited": (
        forgets_to_await,
        "arguments['value'] is an awaitable (step 'plain')",
        "write `await`",
    ),
    "a step that is a method": (
        calls_a_method,
        "step Agent.acts(self)",
        "a step cannot be a method: make it a function",
    ),
    "an argument that holds itself": (hands_what_holds_itself, "arguments['value']['deep'][0]['up']", "a flat value"),
    "an argument that is deep": (hands_what_is_deep, "step 'plain': arguments", "nested too deeply"),
    "an argument that is deep and shared": (hands_what_is_deep_and_shared, "arguments", "nested too deeply"),
    "a fork of nothing": ((forks, None), f"{line(forks, 1)}: fork() was given a NoneType", "give it a list"),
    "a fork of a set": ((forks, {1, 2}), f"{line(forks, 1)}: fork() was given a set", "give it `sorted(...)`"),
    "a fork of a lock": (forks_locks, f"fork() at {line(forks_locks, 1)}: its items[0] is a", "Pass JSON values"),
    "a fork's map, not entered": ((forks_and_asks, "map"), f"{line(forks_and_asks, 1)}: fork()", "write `async with"),
    "a fork as a list": ((forks_and_asks, "for"), f"{line(forks_and_asks, 1)}: fork()", "write `async with"),
    "a fork awaited": ((forks_and_asks, "await"), f"{line(forks_and_asks, 1)}: fork()", "write `async with"),
    "a fork as an argument": (
        hands_a_fork,
        "arguments['value'] is a context manager (Fork)",
        "write `async with` around the call",
    ),
    "a step in a node": (graph(a=runs_a_step), "node 'a'", "call a plain function there"),
}


@pytest.mark.parametrize("case", FOUND)
async def test_the_error_names_the_place_and_the_fix(case: str, home: Path, workspace: Path) -> None:
    given, place, mend = FOUND[case]
    with pytest.raises(Exception, match=r".") as caught:
        if isinstance(given, StateGraph):
            await run_graph(given, home, workspace)
        else:
            await run_workflow(*(given if isinstance(given, tuple) else (given,)), home=home, workspace=workspace)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert place in said
    assert mend in said


@pytest.mark.parametrize("value", [threading.Lock(), [2**80]])
async def test_a_channel_that_a_foreign_checkpointer_cannot_store_is_named(
    value: Any, home: Path, workspace: Path
) -> None:
    def gives(state: State, sandbox: SyncSandbox) -> State:
        return {"n": value}

    with ramify.compile(graph(a=gives), workspace, home=home, sandbox="copy", checkpointer=InMemorySaver()) as app:
        for call in (app.invoke, lambda *given: asyncio.run(app.ainvoke(*given))):
            with pytest.raises(TypeError) as caught:
                await asyncio.to_thread(call, {"n": 0}, {"configurable": {"thread_id": "1"}})
            (said,) = [note for note in caught.value.__notes__ if "checkpoint can keep" in note]
            assert "channel 'n'" in said


async def run_workflow(flow: Any, *given: Any, home: Path, workspace: Path) -> None:
    async with Runtime(home=home, sandbox="copy") as runtime:
        await runtime.run(flow, *given, workspace=workspace)


async def run_graph(made: Any, home: Path, workspace: Path) -> None:
    saver = ramify.graph.saver(home)
    try:
        app = ramify.compile(made, workspace, home=home, sandbox="copy", checkpointer=saver)
        try:
            await app.ainvoke({"n": 0}, {"configurable": {"thread_id": "1"}})
        finally:
            app.close()
    finally:
        saver.close()


OUTSIDE: list[Callable[[], Any]] = [
    plain,
    lambda: ramify.llm.chat("?"),
    lambda: ramify.fork([1]),
    ramify.current_sandbox,
    lambda: ramify.interrupt("?"),
]


@pytest.mark.parametrize("call", OUTSIDE)
def test_a_call_outside_a_workflow_says_where_to_call_it(call: Callable[[], Any]) -> None:
    with pytest.raises(NotInARun) as caught:
        call()
    assert re.search("called .*outside", str(caught.value))


def test_the_best_of_no_branches_is_an_error() -> None:
    with pytest.raises(ValueError, match="given no items"):
        Outcomes([]).best(key=bool)


def no_step(item: int) -> int:
    return item


@workflow
async def maps_no_step() -> list[int]:
    async with ramify.fork([1, 2]) as branches:
        return [outcome.value for outcome in await branches.map(no_step)]  # type: ignore[type-var]


async def test_a_branch_runs_steps(home: Path, workspace: Path) -> None:
    async with Runtime(home=home) as runtime:
        with pytest.raises(RunFailed, match=r"test_bad_input\.py:\d+: .*no_step is not a step: put @step on it"):
            await runtime.run(maps_no_step, workspace=workspace)


def test_messages_of_another_kind_are_named() -> None:
    asked: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(TypeError, match=r"message 1 of the prompt is a dict.*Message"):
        ramify.llm.chat(asked)


@step
async def takes_nothing() -> None: ...


NO_WORKFLOWS = {"none": None, "text": "app.py:flow", "function": asyncio.sleep, "step": takes_nothing}


@pytest.mark.parametrize("given", NO_WORKFLOWS.values(), ids=NO_WORKFLOWS)
async def test_what_is_no_workflow_is_not_run(given: Any, home: Path) -> None:
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(TypeError, match="is not a workflow: "):
            await runtime.run(given)


@pytest.mark.parametrize("rows", ["effects", "journal", "llm_calls"])
@pytest.mark.parametrize("name", ["", "nobody"])
async def test_rows_of_a_run_that_is_not_there(rows: str, name: str, home: Path) -> None:
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(RunNotFound, match="ramify ls"):
            await getattr(runtime, rows)(name)


@pytest.mark.parametrize("stop", [3, ["a", 3]])
def test_a_stop_that_is_no_text_is_named(stop: Any) -> None:
    with pytest.raises(TypeError, match=r"stop=3: give a text, or a list of texts"):
        ramify.llm.chat("x", stop=stop)


def test_a_prompt_that_is_no_text_is_named() -> None:
    asked: Any = 3
    with pytest.raises(TypeError, match=r"the prompt is 3: give text, or a list of ramify"):
        ramify.llm.chat(asked)


@pytest.mark.parametrize("n", [0, -1, "2"])
def test_a_number_of_samples_that_is_none_is_refused(n: Any) -> None:
    with pytest.raises(ValueError, match=r"n is a whole number from 1"):
        ramify.llm.propose("x", n=n)
