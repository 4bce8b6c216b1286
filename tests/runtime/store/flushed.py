"""Run under strace by test_flushes.py: each part does a thing 6 times, and marks its begin and its end in the trace.

python flushed.py FOLDER
"""

from __future__ import annotations

import asyncio
import operator
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Send

import ramify
from ramify import Runtime, Sandbox, llm, step, workflow
from ramify.graph import Saver
from ramify.runtime.journal import journal
from ramify.runtime.langgraph.checkpointer import group_commit
from ramify.sandboxes.testing import Answer, ScriptedBackend
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel

TIMES, WIDTH = 6, 4
# however slow this machine is: a checkpoint comes before the rows that wait for it are committed alone
journal.LINGER_S = dict.fromkeys(journal.LINGER_S, 30.0)
group_commit.JOIN_NEXT_COMMIT_S = 30.0


def mark(which: str, part: str) -> None:
    os.access(f"/{which}-{part}", 0)


def script(tree: Path, command: str) -> Answer:
    name, _, text = command.partition(" ")
    return Answer(edits={name: text})


def backend(store: Any, scratch: Path) -> ScriptedBackend:
    return ScriptedBackend(store, scratch, script)


def model() -> LLMClient:
    return LLMClient("http://model.test/v1", transport=ScriptedModel(lambda request: "said"))


class State(TypedDict):
    left: int
    said: Annotated[list[str], operator.add]


def looping(part: str, work: Any) -> Any:
    """One node, repeatedly; what comes before the first and after the last superstep is not counted."""

    async def node(state: State, sandbox: Sandbox) -> dict[str, object]:
        if state["left"] == TIMES + 1:
            mark("begin", part)
        if state["left"] == 1:
            mark("end", part)
        await work(sandbox, state["left"])
        return {"left": state["left"] - 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if state["left"] > 0 else "__end__")
    return graph


def fanning(part: str) -> Any:
    """One superstep of several nodes and one that joins them, repeatedly."""

    async def lead(state: State) -> dict[str, object]:
        if state["left"] == TIMES + 1:
            mark("begin", part)
        if state["left"] == 1:
            mark("end", part)
        return {"left": state["left"] - 1}

    async def one(state: dict[str, Any], sandbox: Sandbox) -> dict[str, object]:
        await sandbox.run(f"f{state['n']} {state['left']}")
        return {"said": [str(state["n"])]}

    graph = StateGraph(State)
    graph.add_node("lead", lead)
    graph.add_node("one", one)
    graph.add_edge(START, "lead").add_edge("one", "lead")
    graph.add_conditional_edges(
        "lead",
        lambda state: [Send("one", {**state, "n": n}) for n in range(WIDTH)] if state["left"] > 0 else "__end__",
        ["one", "__end__"],
    )
    return graph


async def nothing(sandbox: Sandbox, number: int) -> None:
    pass


async def a_file(sandbox: Sandbox, number: int) -> None:
    await sandbox.run(f"file {number}")


async def an_answer(sandbox: Sandbox, number: int) -> None:
    await llm.chat(f"about {number}")


PARTS = {
    "nothing": (nothing, "sync", "async"),
    "file": (a_file, "sync"),
    "answer": (an_answer, "sync"),
    "fan": (None, "sync"),
}


def graphs(folder: Path) -> None:
    """The saver's tables are in the home's database."""
    for name, (work, *durabilities) in PARTS.items():
        for durability in durabilities:
            part = f"{name}-{durability}"
            graph = fanning(part) if work is None else looping(part, work)
            home = folder / part
            home.mkdir()
            with (
                Saver.open(home / "ramify.db") as saver,
                ramify.compile(graph, checkpointer=saver, home=home, sandbox=backend, llm=model(), name="g") as app,
            ):
                config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 100}
                asyncio.run(app.ainvoke({"left": TIMES + 2, "said": []}, config, durability=durability))


@step
async def changes(sandbox: Sandbox, number: int) -> str:
    return (await sandbox.run(f"file {number}")).stdout


@step
async def asks(number: int) -> str:
    return (await llm.chat(f"about {number}")).text


@step
async def uses_a_tool(sandbox: Sandbox, number: int) -> str:
    return (await sandbox.run(f"file {number}", reuse=True)).stdout


@step
async def plain(number: int) -> int:
    return number


@workflow
async def steps(part: str) -> None:
    work: Any = {"step": plain, "step-file": changes, "step-answer": asks, "step-tool": uses_a_tool}[part]
    await work(0)
    mark("begin", part)
    for number in range(TIMES):
        await work(number + 1)
    mark("end", part)


async def decorated(folder: Path) -> None:
    async with Runtime(home=folder / "steps", sandbox=backend, llm=model()) as runtime:
        for part in ("step", "step-file", "step-answer", "step-tool"):
            await runtime.run(steps, part)


if __name__ == "__main__":
    asyncio.run(decorated(Path(sys.argv[1])))
    graphs(Path(sys.argv[1]))
