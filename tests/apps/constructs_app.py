"""What a workflow of functions may be made of, all in one: each step says that it began, and may be told to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from ramify import Sandbox, SyncSandbox, fork, interrupt, llm, step, tool, workflow

BEGUN: list[str] = []
FAILS_AT: set[int] = set()  # which step bodies, counted as they begin, raise `Stopped`


class Stopped(BaseException):
    """Past every `except` and every retry: as a machine that is switched off."""


@dataclass(frozen=True)
class Told:
    """A value of the app's own, which results and arguments may hold."""

    words: tuple[str, ...]
    size: int


def begun(what: str) -> None:
    BEGUN.append(what)
    if len(BEGUN) in FAILS_AT:
        raise Stopped(what)


@step
async def write(sandbox: Sandbox, name: str) -> str:
    begun(f"write {name}")
    (sandbox.path / name).write_text(name)
    return name


@step(timeout="60s")
def write_in_a_thread(sandbox: SyncSandbox, name: str) -> str:
    begun(f"write {name}")
    (sandbox.path / name).write_text(name)
    return name


@step(retry=1)
async def works_at_last(sandbox: Sandbox, name: str) -> str:
    begun(f"try {name}")
    half = sandbox.path / f"{name}.half"
    assert not half.exists(), "a failed attempt left its files"
    half.write_text("half")
    if BEGUN[-2] != f"try {name}":
        raise OSError("the first attempt fails")
    return name


@step
async def breaks(sandbox: Sandbox) -> None:
    begun("break")
    (sandbox.path / "broken").touch()
    raise ValueError("as it should")


@step(effect="pure")
async def measured(told: Told) -> Told:
    begun(f"measure {told.size}")
    return Told((*told.words, "measured"), told.size * 2)


@step(effect="irreversible", idempotent=True)
async def send(text: str) -> str:
    begun(f"send {text}")
    return text


@tool
async def look(sandbox: Sandbox) -> list[str]:
    """The names of all files."""
    begun("look")
    return sorted(path.name for path in sandbox.path.iterdir())


@step
async def note(sandbox: Sandbox, agent: str, line: str) -> int:
    """Agents write on one board, each in its turn."""
    begun(f"note {agent} {line}")
    board = sandbox.path / f"board-{agent}"
    board.write_text((board.read_text() if board.exists() else "") + line)
    return len(board.read_text())


async def agent(name: str) -> int:
    await note(name, "one ")
    return await note(name, "two ")


@workflow
async def inner(name: str) -> str:
    return await write(name)


@workflow
async def many(names: list[str]) -> AsyncGenerator[str, None]:
    for name in names:
        yield await write(name)


@workflow
async def everything(rounds: int) -> dict[str, object]:
    seen: list[object] = []
    for at in range(rounds):
        seen.append(await (write(f"even{at}") if at % 2 == 0 else write_in_a_thread(f"odd{at}")))
    seen.append(await works_at_last("flaky"))
    try:
        await breaks()
    except ValueError:
        seen.append("caught")
    seen += await asyncio.gather(measured(Told(("a",), 1)), measured(Told(("b",), 2)))
    seen += [await inner("inner"), [name async for name in many.stream(["first", "second"])]]
    seen += await asyncio.gather(agent("x"), agent("y"))  # two agents on one world
    async with fork(["left", "right"]) as branches:  # and one on each fork of it
        outcomes = await branches.map(write)
        for outcome in outcomes:
            await outcome.adopt()
    thought = await llm.chat("and now?")
    answer = await interrupt("send it?")
    if answer:
        seen.append(await send(thought.text))
    return {"seen": seen, "files": await look()}
