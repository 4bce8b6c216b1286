"""What is killed: a workflow with effects, whose receivers honour keys or do not, and a LangGraph graph and
entrypoint. Each is small; together they pass every kind of crash point."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph

from ramify import Sandbox, SyncSandbox, fork, idempotency_key, llm, step, workflow
from ramify.fork_engine import crash_points
from ramify.sandboxes.testing import Answer

OUTBOX = Path()
"""The receiver, set by each trial: a line an effect, `key text`."""

STOPS = False
"""While it is true, `stopping` does not come past its last step."""


def answer(tree: Path, command: str) -> Answer:
    """`add NAME TEXT`: append a line to a file. Prints the names of all files."""
    _, name, text = command.split(" ", 2)
    place = tree / name
    before = place.read_text() if place.exists() else ""
    names = sorted({path.name for path in tree.iterdir()} | {name})
    return Answer(stdout=" ".join(names), edits={name: f"{before}{text}\n"})


def sent() -> list[tuple[str, str]]:
    lines = OUTBOX.read_text().splitlines() if OUTBOX.exists() else []
    return [(key, text) for key, _, text in (line.partition(" ") for line in lines)]


def _receive(text: str, *, honours_keys: bool) -> str:
    key = idempotency_key()
    crash_points.point("about to send")
    if not (honours_keys and key in {known for known, _ in sent()}):
        with OUTBOX.open("a") as outbox:
            outbox.write(f"{key} {text}\n")
    crash_points.point("sent")
    return f"receipt for {text}"


@step
async def add(sandbox: Sandbox, name: str, text: str) -> str:
    return (await sandbox.run(f"add {name} {text}")).stdout


@step
async def attempt(sandbox: Sandbox, name: str) -> str:
    await sandbox.run(f"add notes {name}")
    said = (await llm.chat(f"about {name}")).text
    return (await sandbox.run(f"add {name} {said}", reuse=True)).stdout


@step(effect="irreversible", idempotent=True)
async def tell_with_key(text: str) -> str:
    return _receive(text, honours_keys=True)


@step(effect="irreversible")
async def tell(text: str) -> str:
    return _receive(text, honours_keys=False)


@workflow
async def with_keys(names: list[str]) -> list[str]:
    await add("notes", "start")
    first = await tell_with_key("hello")
    async with fork(names) as branches:
        outcomes = await branches.map(attempt, concurrency=2)
        await outcomes[1].adopt()
    last = await add("end", "end")
    said = (await llm.chat(f"about {last}")).text  # the step before it is committed meanwhile
    return [first, await tell_with_key("bye"), last, said, *(outcome.value for outcome in outcomes)]


@workflow
async def without_keys(names: list[str]) -> list[str]:
    await add("notes", "start")
    first = await tell("hello")
    async with fork(names) as branches:
        outcomes = await branches.map(attempt, concurrency=2)
        await outcomes[1].adopt()
    last = await add("end", "end")
    return [first, await tell("bye"), last, *(outcome.value for outcome in outcomes)]


@step
async def finish(sandbox: Sandbox) -> str:
    if STOPS:
        raise RuntimeError("not yet")
    return (await sandbox.run("add end end")).stdout


@workflow
async def stopping(names: list[str]) -> list[str]:
    await add("notes", "start")
    async with fork(names) as branches:
        outcomes = await branches.map(attempt, concurrency=2)
        await outcomes[1].adopt()
    return [await finish(), *(outcome.value for outcome in outcomes)]


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def _node(name: str) -> Callable[..., Any]:
    async def node(state: State, sandbox: Sandbox) -> State:
        await sandbox.run(f"add {name} seen")
        said = (await llm.chat(f"about {name}")).text
        found = await sandbox.run(f"add {name} {said}")
        return {"said": [found.stdout]}

    return node


def graph() -> StateGraph[State]:
    """a, then l and r in parallel, then z."""
    made = StateGraph(State)
    for name in "alrz":
        made.add_node(name, _node(name))
    made.add_edge(START, "a").add_edge("a", "l").add_edge("a", "r")
    return made.add_edge(["l", "r"], "z")


@task
def look(name: str, sandbox: SyncSandbox) -> str:
    said = asyncio.run(llm.chat(f"about {name}")).text
    return sandbox.run(f"add {name} {said}").stdout


@entrypoint()
def flow(names: list[str], sandbox: SyncSandbox) -> list[str]:
    """Tasks one after the other, on forks of the entrypoint's world. Synchronous: its threads wait for the saver."""
    sandbox.run("add notes start")
    seen = [look(name).result() for name in names]
    return [*seen, sandbox.run("add end end").stdout]
