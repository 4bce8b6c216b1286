"""Workflows that say more of their model calls than a deadline."""

from __future__ import annotations

import asyncio

from ramify import llm, slo, step, workflow


@workflow
async def answers(question: str) -> str:
    with slo(weight=3.0, think="20s"):
        drafts = await llm.propose(question, n=2)
    with slo(stream=True, last=True, first_token="1s", per_token="200ms"):
        return (await llm.chat(drafts[0])).text


@workflow
def answers_in_a_thread(question: str) -> str:
    with slo(weight=3.0, think="20s"):
        drafts = llm.propose(question, n=2)
    with slo(stream=True, last=True, first_token="1s", per_token="200ms"):
        return llm.chat(drafts[0]).text  # type: ignore[index, attr-defined]  # blocking in a thread: decision 003


STOPS = True  # whether `stop` raises: a process that ends here


@step(effect="pure")
async def stop() -> None:
    if STOPS:
        raise RuntimeError("ends here")


@workflow
async def first_two(question: str) -> list[list[str]]:
    """The two ways of a search, at the same time; then it is stopped and resumed."""
    found = await asyncio.gather(*(llm.propose(f"{question} {way}", n=4, need=2) for way in ("up", "down")))
    await stop()
    return list(found)


@workflow
async def first_of_more_than_there_are(question: str) -> list[str]:
    return await llm.propose(question, n=2, need=3)


@workflow
async def half(question: str) -> list[str]:
    return await llm.propose(question, n=4, need=2)
