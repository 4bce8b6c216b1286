"""A workflow whose branches talk to a model, and are released."""

from __future__ import annotations

from ramify import fork, llm, step, workflow


@workflow
async def talks(count: int) -> list[str]:
    await llm.chat("before")
    async with fork(list(range(count))) as branches:
        return [one.value for one in await branches.map(talk)]


@step(effect="pure")
async def talk(at: int) -> str:
    return (await llm.chat(f"branch {at}")).text
