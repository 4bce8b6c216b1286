"""The workflows that `compiler.py` runs."""

from __future__ import annotations

from ramify import Sandbox, fork, llm, step, workflow


@step
async def touch(sandbox: Sandbox, text: str) -> str:
    (sandbox.path / "touched").write_text(text)
    return text


@workflow
async def fans_out(width: int) -> int:
    ideas = await llm.propose("ideas?", n=16)
    async with fork(ideas[:width]) as branches:
        outcomes = await branches.map(touch, concurrency=16)
    return len(outcomes)


@workflow
async def edits(many: int) -> str:
    """Small changes one after the other, as an agent's edit tool makes them."""
    for n in range(many):
        await touch(f"{n}")
    return await look()


@step
async def look(sandbox: Sandbox) -> str:
    return (sandbox.path / "touched").read_text()


@workflow
async def three_stages() -> str:
    first = await llm.propose("first?", n=3)
    await touch(first[0])
    second = (await llm.chat("second?")).text
    await touch(second)
    return (await llm.chat(f"third? {second}")).text
