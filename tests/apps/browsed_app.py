"""A run with something to see: a choice of the model, a fork of three, one of which fails, a merge, an effect."""

from __future__ import annotations

import asyncio

from ramify import Sandbox, fork, llm, step, workflow
from ramify.sandboxes.contract import RunResult

held: asyncio.Event | None = None  # of a test that wants the run to stand still before its end


@step
async def write(sandbox: Sandbox, name: str, text: str) -> RunResult:
    return await sandbox.run(f"cat > {name}; echo wrote {name}", stdin=text, check=True)


@step
async def attempt(sandbox: Sandbox, number: int) -> int:
    await sandbox.run("cat > notes.txt", stdin=f"<b>first</b>\nattempt {number}\n", check=True)
    if number == 2:
        raise ValueError("the second attempt is not to be")
    return number


@step
async def wait(sandbox: Sandbox) -> None:
    if held is not None:
        await held.wait()


@workflow(deadline="5m")
async def browsed() -> int:
    """Write, ask, try three ways, take the last, write again."""
    await write("notes.txt", "<b>first</b>\nsecond\n")
    choice = await llm.choose("Which way?", ["left", "right"])
    async with fork([1, 2, 3]) as branches:
        outcomes = await branches.map(attempt, errors="return")
        await outcomes[2].adopt()
    await wait()
    await write("end.txt", f"{choice.order[0]}\n")
    return outcomes[2].value
