"""Workflows whose branches may run on the nodes of a fleet. `folder`: where steps tell what they do, and wait for a
gate."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ramify import Sandbox, fork, llm, slo, step, workflow

GATE = "gate"


class Wrong(Exception):
    """An error of a user's own."""


def told(folder: Path, file: str) -> list[str]:
    path = folder / file
    return path.read_text().splitlines() if path.exists() else []


def tell(folder: str, file: str, word: str) -> None:
    with (Path(folder) / file).open("a") as log:
        log.write(f"{word}\n")


async def gate(folder: str, item: int) -> None:
    """Wait for the gate, or for that of one branch."""
    while not any((Path(folder) / name).exists() for name in (GATE, f"{GATE}{item}")):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@step
async def write(sandbox: Sandbox, item: int, folder: str) -> int:
    tell(folder, "begun", str(item))
    await sandbox.run(f"echo {item} >> words; echo {item} > own{item}", check=True)
    await gate(folder, item)
    return item


@step
async def more(sandbox: Sandbox, word: str) -> str:
    await sandbox.run(f"echo {word} >> words", check=True)
    return (sandbox.path / "words").read_text()


@step(effect="readonly")
async def read(sandbox: Sandbox) -> str:
    return (sandbox.path / "words").read_text()


@step(effect="pure")
def square(item: int) -> int:
    return item * item


@step(effect="irreversible", in_fork="leave")
async def send(sandbox: Sandbox, folder: str) -> str:
    words = (sandbox.path / "words").read_text()
    tell(folder, "sent", str(os.getpid()))
    return words


@step(retry=1)
async def fails_once(sandbox: Sandbox, item: int, folder: str) -> str:
    tell(folder, f"tries{item}", "once")
    await sandbox.run("echo try >> tries")
    if item == 1 and told(Path(folder), f"tries{item}") == ["once"]:
        raise Wrong("first")
    return (sandbox.path / "tries").read_text()


@step
async def refuses(sandbox: Sandbox, item: int) -> int:
    await sandbox.run("echo it stops here; false")
    raise Wrong(f"branch {item}")


@step
async def ask(sandbox: Sandbox, item: int, folder: str) -> str:
    first = await llm.chat(f"first {item}")
    tell(folder, "asked", first.text)
    await gate(folder, item)
    second = await llm.propose(f"second {item}", n=2)
    await sandbox.run(f"echo {first.text} >> words")
    return " ".join([first.text, *second])


@step
async def streams(sandbox: Sandbox, item: int) -> str:
    pieces = [piece async for piece in llm.stream(f"stream {item}")]
    return "".join(pieces)


@workflow
async def grow(folder: str, count: int) -> list[object]:
    """The last branch is forked again, sends what it has, and is merged."""
    await more("root")
    async with fork(list(range(count))) as branches:
        outcomes = await branches.map(write, folder)
        last = outcomes[-1]
        async with last.enter():
            async with fork(["a", "b"]) as below:
                texts = [await branch.run(more, branch.item) for branch in below]
                await below[1].adopt()
            sent = await send(folder)
            read_there = await read()
        squares = [one.value for one in await branches.map(square)]
        await last.adopt()
    return [[one.value for one in outcomes], texts, sent, read_there, squares, await read()]


@workflow
async def first_of(folder: str, count: int) -> list[int]:
    async with fork(list(range(count))) as branches:
        return [one.value for one in await branches.map(write, folder, need=1)]


@workflow
async def takes_last(folder: str) -> None:
    """The run ends in the state that a branch made."""
    async with fork([0, 1]) as branches:
        outcomes = await branches.map(write, folder)
        await outcomes[-1].adopt()


@workflow
async def reads(folder: str) -> list[str]:
    async with fork([0, 1]) as branches:
        await branches.map(write, folder)
        return [await branch.run(read) for branch in branches]


@workflow
async def tries(folder: str) -> list[str]:
    async with fork([0, 1]) as branches:
        return [one.value for one in await branches.map(fails_once, folder)]


@workflow
async def refused() -> list[str]:
    async with fork([0, 1]) as branches:
        outcomes = await branches.map(refuses, errors="return")
        return [f"{type(one.error).__name__}: {one.error}" for one in outcomes]


@workflow
async def asks(folder: str) -> list[str]:
    async with fork([0, 1]) as branches:
        return [one.value for one in await branches.map(ask, folder)]


@workflow
async def asks_in_time(folder: str) -> list[str]:
    async with fork([0, 1]) as branches:
        with slo(weight=3):
            return [one.value for one in await branches.map(ask, folder)]


@workflow
async def reads_streams() -> list[str]:
    async with fork([0, 1]) as branches:
        return [one.value for one in await branches.map(streams)]
