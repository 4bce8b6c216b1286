"""Workflows that could have gone another way."""

from __future__ import annotations

from ramify import Sandbox, fork, step, workflow

DONE: list[str] = []
SENT: list[str] = []


@step
async def write(sandbox: Sandbox, name: str) -> str:
    DONE.append(name)
    (sandbox.path / name).write_text(name)
    return name


@step
async def count(sandbox: Sandbox) -> int:
    DONE.append("count")
    return len(list(sandbox.path.iterdir()))


@step
async def long_text(length: int) -> str:
    DONE.append("long text")
    return "".join(f"{number:08}" for number in range(length // 8))


@step(effect="irreversible")
async def send(text: str) -> str:
    SENT.append(text)
    return text


@step(effect="irreversible", in_fork="recorded")
async def send_once(text: str) -> str:
    SENT.append(text)
    return f"{len(SENT)}: {text}"


@workflow
async def sends_once() -> list[str]:
    await write("a")
    told = [await send_once("hello")]
    await write("b")
    return [*told, await send_once("bye")]


@workflow
async def counts() -> int:
    await write("a")
    await write("b")
    return await count()


@workflow
async def writes_long(length: int) -> int:
    text = await long_text(length)
    await write("a")
    await write("b")
    return len(text)


@workflow
async def searches() -> list[str]:
    async with fork(["left", "right"]) as branches:
        outs = await branches.map(write)
        await outs.best(key=len).adopt()
    return [await write("end")]


@workflow
async def sends() -> str:
    await write("a")
    await send("hello")
    await write("b")
    return await send("bye")
