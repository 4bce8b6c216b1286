"""Workflows for the nodes of a fleet. Each takes the folder where it writes what it does and looks for a gate."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ramify import Sandbox, interrupt, step, workflow

SENT, ADDED, GATE = "sent", "added", "gate"


def note(folder: str, file: str, word: str) -> None:
    with (Path(folder) / file).open("a") as log:
        log.write(f"{word}\n")


@step
async def add(sandbox: Sandbox, folder: str, word: str) -> int:
    note(folder, ADDED, word)
    path = sandbox.path / "words"
    path.write_text((path.read_text() if path.exists() else "") + f"{word}\n")
    return os.getpid()


@step(effect="irreversible")
async def send(folder: str, word: str) -> None:
    note(folder, SENT, word)


@step(effect="readonly")
async def read(sandbox: Sandbox) -> str:
    return (sandbox.path / "words").read_text()


@step
async def wait_for(folder: str) -> None:
    while not (Path(folder) / GATE).exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@workflow
async def words(folder: str, name: str) -> str:
    await add(folder, f"{name} one")
    await send(folder, name)
    await wait_for(folder)
    await add(folder, f"{name} two")
    return await read()


@workflow
async def where(folder: str) -> int:
    return await add(folder, "here")


class Refusal(Exception):
    """An error of a user's own."""


@step
async def refuse(word: str) -> None:
    raise Refusal(word)


@workflow
async def refuses(word: str) -> None:
    await refuse(word)


@step
async def leave() -> None:
    sys.exit(3)


@step
def leave_from_a_thread() -> None:
    sys.exit(3)


async def left() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


@workflow
async def exits(where: str) -> None:
    if where == "workflow":
        sys.exit(3)
    if where == "task":
        await asyncio.create_task(left())
    await asyncio.gather(leave() if where == "step" else leave_from_a_thread())


@workflow
async def asks(folder: str, name: str) -> str:
    await add(folder, "before")
    answer: str = await interrupt({"who": name})
    await add(folder, answer)
    return await read()


@workflow
async def dies() -> None:
    os.kill(os.getpid(), 9)
