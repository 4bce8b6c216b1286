"""Workflows and graphs whose runs are recorded in `*.tar.gz` beside this file.

Do not edit: the recordings are of this code.

A workflow kills its own process at the point that the environment variable HISTORY_KILL names. Effects on the outside
are lines of the file that HISTORY_OUTBOX names.
"""

from __future__ import annotations

import asyncio
import operator
import os
import signal
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt as ask_in_graph
from pydantic import BaseModel
from typing_extensions import TypedDict

import ramify
from ramify import Sandbox, SyncSandbox, fork, interrupt, llm, step, workflow


def kill_at(point: str) -> None:
    if os.environ.get("HISTORY_KILL") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def send(line: str) -> None:
    with Path(os.environ["HISTORY_OUTBOX"]).open("a") as outbox:
        outbox.write(f"{line}\n")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Mood(StrEnum):
    CALM = "calm"


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Invoice:
    number: int
    amount: Decimal
    due: date
    tags: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


class Customer(BaseModel):
    name: str
    age: int = 0
    colour: Colour = Colour.RED


class Refused(Exception):
    """What a step raises, and its workflow catches."""


VALUES: list[Any] = [
    None,
    True,
    7,
    2**80,
    1.5,
    "text",
    b"bytes",
    [1, 2],
    (1, (2, 3)),
    {"a": 1},
    {1: "one", (2, 3): "pair"},
    {1, 2},
    frozenset({"x"}),
    Colour.BLUE,
    Mood.CALM,
    Point(1, 2),
    Decimal("1.10"),
    UUID(int=5),
    Path("some/file"),
    date(2026, 11, 27),
    datetime(2026, 11, 27, 12, 30, tzinfo=UTC),
    timedelta(days=1, seconds=2, microseconds=3),
    Invoice(1, Decimal("9.99"), date(2026, 12, 1), ("a", "b"), {"k": [1]}),
    Customer(name="Ada", age=36),
]


@step
async def give(index: int) -> Any:
    return VALUES[index]


@step
async def describe(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"


@workflow
async def every_value() -> list[str]:
    """One recorded result and one recorded argument of every kind of value."""
    told = [await describe(await give(index)) for index in range(len(VALUES))]
    kill_at("values given")
    return told


@step(effect="irreversible")
async def pay(amount: int) -> str:
    send(f"pay {amount}")
    return f"receipt {amount}"


@step(effect="irreversible")
async def next_id() -> int:
    send("id")
    return len(Path(os.environ["HISTORY_OUTBOX"]).read_text().splitlines())


@step
async def check(amount: int) -> bool:
    kill_at(f"check {amount}")
    return amount > 0


@workflow
async def payments() -> dict[str, Any]:
    """Irreversible steps in a row and in a loop, one of them three times alike."""
    first, second = await pay(1), await pay(2)
    ada = await next_id()
    bob = await next_id()
    cyd = await next_id()
    receipts = []
    for amount in (3, 4, 5):
        receipts.append(await pay(amount))
        await check(amount)
    return {"first": first, "second": second, "ids": [ada, bob, cyd], "receipts": receipts}


@step
async def write(sandbox: Sandbox, name: str, text: str) -> int:
    (sandbox.path / name).write_text(text)
    return len(text)


@step
async def listing(sandbox: Sandbox) -> list[str]:
    return sorted(path.name for path in sandbox.path.iterdir() if path.is_file())


@step
async def attempt(sandbox: Sandbox, name: str) -> int:
    (sandbox.path / f"{name}.txt").write_text(name)
    if name == "bad":
        raise Refused(name)
    kill_at(f"attempt {name}")
    return len(name)


@workflow(workspace="workspace")
async def branches() -> dict[str, Any]:
    """Files, a fork of three branches of which one fails, a merge of the best one."""
    await write("before.txt", "before\n")
    async with fork(["a", "bad", "ccc"]) as several:
        outcomes = await several.map(attempt, errors="return")
        best = outcomes.best(key=lambda length: length)
        await best.adopt()
    await write("after.txt", "after\n")
    kill_at("merged")
    return {"best": best.item, "files": await listing()}


@workflow(workspace="workspace")
async def asks() -> dict[str, Any]:
    """Waits for a person, between two steps."""
    size = await write("draft.txt", "draft\n")
    answer = await asyncio.wait_for(_question(size), None)
    await pay(size)
    return {"answer": answer, "files": await listing()}


async def _question(size: int) -> Any:
    return await interrupt(f"Publish {size} bytes?")


@workflow
async def asks_model() -> list[str]:
    """Model calls whose answers are recorded."""
    first = await llm.chat("Say something")
    several = await llm.propose("Say more", n=3)
    kill_at("answered")
    return [first.text, *several]


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    customer: Customer


def begin(state: State, sandbox: SyncSandbox) -> dict[str, Any]:
    sandbox.run("echo begun > begun.txt", check=True)
    return {"log": ["begin"], "customer": Customer(name="Bob", age=3)}


def review(state: State) -> dict[str, Any]:
    answer = ask_in_graph({"question": "Is this right?", "log": state["log"]})
    return {"log": [f"review {answer}"]}


def end(state: State, sandbox: SyncSandbox) -> dict[str, Any]:
    files = sandbox.run("ls", check=True).stdout.split()
    return {"log": [f"end {','.join(sorted(files))} {state['customer'].name}"]}


def builder() -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node("begin", begin)
    graph.add_node("review", review)
    graph.add_node("end", end)
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "review")
    graph.add_edge("review", "end")
    return graph


def app(home: Path, workspace: Path, saver: BaseCheckpointSaver[str]) -> Any:
    return ramify.compile(
        builder(), workspace=workspace, home=home, sandbox="copy", checkpointer=saver, name="history"
    )
