"""Forks, a nested fork in a helper, a return out of a fork, a loop, a recursive helper and model calls."""

from __future__ import annotations

import asyncio

from stand_in import Effect, Sandbox, fork, llm, step, workflow

LIMIT = 3


def shorten(text: str) -> str:
    if not text:
        raise ValueError("nothing to shorten")
    return text[:LIMIT]


@step
async def run_tests(sandbox: Sandbox) -> str: ...


@step
async def try_patch(sandbox: Sandbox, patch: str) -> str:
    return shorten(patch)


@step(effect=Effect.PURE, reuse=True)
async def score(patch: str) -> float:
    return len(patch) / LIMIT


@step(effect=Effect.IRREVERSIBLE)
async def announce(patch: str) -> None: ...


async def deeper(outcomes: list, depth: int) -> None:
    for outcome in outcomes:
        async with outcome.enter():
            proposals = await llm.propose("more", n=2)
            async with fork(proposals) as inner:
                reports = await inner.map(try_patch)
                if not reports:
                    return
                await reports.best(key=len).adopt()
    if depth > 0:
        await deeper(outcomes, depth - 1)


@workflow(deadline_s=90.0)
async def repair(issue: str) -> str | None:
    await run_tests()
    patches = await llm.propose(issue, n=4)
    scores = await asyncio.gather(*(score(patch) for patch in patches))
    async with fork(patches) as branches:
        outcomes = await branches.map(try_patch)
        best = max(outcomes, key=lambda outcome: bool(scores), default=None)
        if best is None:
            return None
        await deeper(outcomes, 1)
        await best.adopt()
    while True:
        try:
            await run_tests()
        except ValueError:
            continue
        break
    await announce(shorten(issue))
    return "repaired"
