"""The workflows that `benchmarks/compiler.py` runs."""

from __future__ import annotations

import asyncio

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


@step
async def review(sandbox: Sandbox, question: str) -> str:
    text = (sandbox.path / "touched").read_text()
    return (await llm.chat(f"{question} {text}")).text


@workflow
async def reviews(many: int) -> int:
    """Steps that read a file and ask a model about it, all at the same time."""
    await touch("text")
    return len(await asyncio.gather(*(review(f"question {n}") for n in range(many))))


@step(reuse=True)
async def prepare(sandbox: Sandbox, what: str) -> str:
    await sandbox.run(f"sleep 0.2; echo {what} > prepared", check=True)
    return what


@workflow
async def prepared(many: int) -> int:
    """Branches that each begin with the same work on the same files."""
    async with fork(["ready"] * many) as branches:
        return len(await branches.map(prepare))


RULES = " ".join(
    f"Rule {n}: before you change anything in part {n}, read its tests, say in one sentence what they hold it to, "
    f"and leave part {n + 1} as it is."
    for n in range(1, 19)
)


@step
async def prepare_slowly(sandbox: Sandbox) -> None:
    await asyncio.sleep(1.0)
    (sandbox.path / "prepared").write_text("yes")


@workflow
async def prepares_and_asks() -> str:
    await prepare_slowly()
    return (await llm.chat("Which part is next? One word.", system=RULES, max_tokens=2)).text
