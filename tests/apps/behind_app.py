"""Agents that ask the model after a step, and what else may follow one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ramify import Sandbox, fork, llm, step, workflow


@step
async def note(sandbox: Sandbox, text: str) -> int:
    with (sandbox.path / "notes").open("a") as notes:
        notes.write(f"{text}\n")
    return len((sandbox.path / "notes").read_text().splitlines())


@step
async def notes(sandbox: Sandbox) -> str:
    return (sandbox.path / "notes").read_text()


@workflow
async def agent(turns: int) -> str:
    """The model after each step, in a loop."""
    said = "begin"
    for turn in range(turns):
        count = await note(said)
        said = (await llm.chat(f"turn {turn} has {count}")).text
    return await notes()


@workflow
async def asks_at_the_end() -> str:
    count = await note("only")
    return (await llm.chat(f"{count}")).text


@workflow
async def forks_after_the_model() -> list[str]:
    count = await note("root")
    said = (await llm.chat(f"{count}")).text
    async with fork([f"{said} 0", f"{said} 1"]) as branches:
        await branches.map(note)
        return [branch.value for branch in await branches.map(_all)]


@step
async def _all(sandbox: Sandbox, _: str) -> str:
    return (sandbox.path / "notes").read_text()


@workflow
async def does_not_ask() -> str:
    await note("a")
    await note("b")
    return await notes()


@workflow
async def asks_perhaps(asks: bool) -> int:
    count = await note("a")
    if asks:
        return len((await llm.chat(f"{count}")).text)
    return await note("b")


@workflow
async def two_at_once() -> list[str]:
    async def one(name: str) -> str:
        count = await note(name)
        return (await llm.chat(f"{name} {count}")).text

    return list(await asyncio.gather(one("a"), one("b")))


@workflow
async def leaves_a_fork() -> str:
    """The model is not asked, as an error comes first."""
    async with fork(["a", "b"]) as branches:
        try:
            with branches[0].enter():
                count = await note("branch")
                {}[count]
                await llm.chat(f"{count}")
        except KeyError:
            pass
    return "left"


@workflow
async def yields_before_the_model() -> AsyncIterator[str]:
    count = await note("only")
    yield f"{count}"
    yield (await llm.chat(f"{count}")).text


@workflow
async def ends_late() -> str:
    try:
        return (await llm.chat("?")).text
    finally:
        await _go_on()


async def _go_on() -> None:
    """A test replaces this."""


async def _another() -> None:
    """A test replaces this."""


@workflow
async def begins_another_step() -> list[str]:
    """A task of its own calls a step at any time."""

    async def later() -> str:
        await _another()
        return f"{await note('b')}"

    task = asyncio.create_task(later())
    count = await note("a")
    said = (await llm.chat(f"{count}")).text
    return [said, await task]
