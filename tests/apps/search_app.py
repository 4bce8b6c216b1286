"""A small workflow with everything in it: steps, a fork, a fork inside a branch, a merge, model calls, reuse.

Tests run it in this process and, killed and resumed, in others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ramify import Sandbox, fork, llm, step, workflow


@dataclass(frozen=True)
class Report:
    name: str
    lines: int

    def __str__(self) -> str:
        return f"{self.name}: {self.lines} lines"


@step
async def prepare(sandbox: Sandbox, text: str) -> int:
    await sandbox.run("cat > notes.txt", stdin=text, check=True)
    return len(text)


@step
async def attempt(sandbox: Sandbox, name: str) -> Report:
    await sandbox.run(f"echo {name} >> notes.txt; echo {name} > {name}.txt", check=True)
    wc = await sandbox.run("wc -l < notes.txt", check=True)
    return Report(name, int(wc.stdout))


@step(reuse=True)
async def count(sandbox: Sandbox) -> int:
    found = await sandbox.run("ls | wc -l", check=True)
    return int(found.stdout)


@step(effect="pure")
async def shout(text: str) -> str:
    return text.upper()


@workflow(deadline="10m")
async def search(names: list[str]) -> list[str]:
    said: list[str] = []
    await prepare("start\n")
    order = (await llm.choose("which first?", names)).order
    ranked = [names[i] for i in order]
    async with fork(ranked) as branches:
        outcomes = await branches.map(attempt)
        counts = await asyncio.gather(*(branch.run(count) for branch in branches))
        best = outcomes.best(key=lambda report: report.lines)
        async with best.enter():
            async with fork([f"{best.item}-{i}" for i in range(2)]) as deeper:
                further = await deeper.map(attempt)
                await further[1].adopt()
            said += await llm.propose("say something", n=2)
        await best.adopt()
    for text in said:
        await attempt(await shout(text.strip()))
    total = await count()
    return [str(best.value), *(str(o.value) for o in further), f"{counts} {total}"]
