"""Workflows on which each pass of the compiler has something to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import ramify
from ramify import Sandbox, fork, llm, step, workflow

MEETING: asyncio.Barrier | None = None  # where readers wait for each other


@step
async def write(sandbox: Sandbox, text: str) -> str:
    await sandbox.run(f"echo {text} >> log", check=True)
    return text


@step(effect="readonly")
async def look(sandbox: Sandbox) -> str:
    """Reads, and leaves something behind all the same, which nobody may see."""
    (sandbox.path / "left-by-look").touch()
    return (await sandbox.run("cat log", check=True)).stdout


@step(effect="readonly")
async def meet(sandbox: Sandbox) -> str:
    assert MEETING is not None
    await MEETING.wait()
    return (sandbox.path / "log").read_text()


@step
async def glance(sandbox: Sandbox) -> str:
    """As `meet`; that it only reads is nowhere declared."""
    assert MEETING is not None
    await MEETING.wait()
    return (sandbox.path / "log").read_text()


@step
async def hides(sandbox: Sandbox) -> None:
    (getattr(ramify, "current_" + "sandbox")().path / "hidden").write_text("by a way that the compiler does not see")


@step(reuse=True)
async def count(sandbox: Sandbox) -> int:
    return len(list(sandbox.path.iterdir()))


@workflow
async def searches(question: str) -> list[str]:
    await write("begun")
    ideas = await llm.propose(question, n=3)
    async with fork(ideas) as branches:
        outcomes = await branches.map(write)
        await outcomes[0].adopt()
    return [str(outcome.value) for outcome in outcomes]


@workflow
async def asks_twice(question: str) -> str:
    await write("begun")
    idea = await llm.chat(question)
    await write("more")
    return await llm.chat(f"{question} {idea}")


@workflow
async def reads() -> list[str]:
    await write("one")
    first = await look()
    await write("two")
    return [first, await look(), str(await count())]


@workflow
async def meets(n: int) -> list[str]:
    await write("one")
    return list(await asyncio.gather(*(meet() for _ in range(n))))


@workflow
async def glances(n: int) -> list[str]:
    await write("one")
    return list(await asyncio.gather(*(glance() for _ in range(n))))


@step(effect="pure")
async def fails_while(flag: str) -> None:
    if Path(flag).exists():
        raise OSError("the flag is there")


@workflow
async def hides_beside(flag: str) -> list[object]:
    found = await asyncio.gather(hides(), count())
    await fails_while(flag)
    return [*found, await count()]


@step
async def same(sandbox: Sandbox, item: int) -> None:
    (sandbox.path / "same").write_text(str(item))


@workflow
async def adopts_both() -> None:
    async with fork([1, 1]) as branches:
        for each in await branches.map(same):
            await each.adopt()


@workflow
async def writes() -> int:
    await write("one")
    await write("two")
    return await count()


BROKEN: list[str] = []  # while it holds something, `breaks` does not end


@step
async def fail(sandbox: Sandbox) -> str:
    if BROKEN:
        raise ValueError(BROKEN[0])
    return (await sandbox.run("cat log", check=True)).stdout


@workflow
async def breaks() -> str:
    await write("one")
    async with fork([1, 2]) as branches:
        outcomes = await branches.map(write)
        await outcomes[1].adopt()
    await write("three")
    await write("four")
    return await fail()


@workflow
async def counts_in_branches() -> list[int]:
    async with fork([1, 2, 3]) as branches:
        return [outcome.value for outcome in await branches.map(count_with)]


@step(reuse=True)
async def count_with(sandbox: Sandbox, item: int) -> int:
    return item


@step(effect="irreversible", idempotent=True)
async def send(text: str) -> str:
    return text


@workflow
async def sends() -> str:
    await write("one")
    return await send("hello")


@workflow
async def asks_in_a_loop(rounds: int) -> list[str]:
    said = []
    for at in range(rounds):
        await write(f"round {at}")
        said += await llm.propose(f"what about {at}?", n=2)
    return said


@step
async def peek(sandbox: Sandbox) -> str:
    return (sandbox.path / "log").read_text()


@workflow
async def everything(question: str) -> list[str]:
    """Something for each pass to do."""
    await write("one")
    await write("two")
    seen = await asyncio.gather(peek(), peek())
    ideas = await llm.propose(question, n=2)
    async with fork(ideas) as branches:
        outcomes = await branches.map(keep)
        await outcomes[0].adopt()
    return [*seen, *(outcome.value for outcome in outcomes), await peek()]


@step(reuse=True)
async def keep(sandbox: Sandbox, idea: str) -> str:
    (sandbox.path / "idea").write_text(idea)
    return idea


@step
async def sets(sandbox: Sandbox) -> None:
    (sandbox.path / "state").write_text("new")


@step
async def resets(sandbox: Sandbox, item: int) -> str:
    (sandbox.path / "state").write_text("old")
    return (sandbox.path / "state").read_text()


@workflow
async def sets_and_resets() -> str:
    async with fork([1]) as branches:
        await sets()
        (only,) = await branches.map(resets)
        await only.adopt()
    return str(only.value)
