"""Solve a task by search: an agent is forked at every turn, and the branches that pass more checks go on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from minisweagent.agents.default import DefaultAgent

from ramify import Beam, search
from ramify.integrations.mini_swe_agent import AgentTurns, Answer, WorldEnvironment, propose
from ramify.tree_search.types import Turn


@dataclass(frozen=True)
class Task:
    """What the agent is asked to do. check: a command that says how far the work is; it runs after every turn."""

    text: str
    check: str


@dataclass(frozen=True)
class Breadth:
    """How much a search tries. width: answers of the model at a state. keep: states of a depth that go on. depth:
    turns of a branch, at most."""

    width: int = 5
    keep: int = 2
    depth: int = 8


@dataclass(frozen=True)
class Solved:
    """score: the share of checks that pass, of the best state. turns: executed. equal: answers that were not executed
    because an equal one was. met: states that were dropped because an equal one was there."""

    score: float
    turns: int
    equal: int
    met: int
    submission: str


def score_of(environment: WorldEnvironment, check: str) -> float:
    """1 if the check succeeds; else the share that it says has passed ("3 passed, 1 failed"), or 0."""
    told = environment.execute({"command": check})
    if told["returncode"] == 0:
        return 1.0
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed)", told["output"])}
    return counts.get("passed", 0) / max(sum(counts.values()), 1)


async def solve(agent: DefaultAgent, task: Task, breadth: Breadth, output: Path | None = None) -> Solved:
    """Search over the agent's turns. output: a folder, missing or empty, that gets the best branch's files."""

    async def score(turns: AgentTurns, history: Sequence[Turn[Answer]]) -> float:
        return await asyncio.to_thread(score_of, turns.environment, task.check)

    async with search(
        AgentTurns(agent, task.text),
        propose,
        method=Beam(breadth.keep),
        width=breadth.width,
        depth=breadth.depth,
        score=score,
        goal=1.0,
        same=lambda history: frozenset(turn.action for turn in history),  # the order of edits is no difference
    ) as found:
        best = found.best.environment
        if output is not None:
            await asyncio.to_thread(best.environment.world.checkout, output)
        submission = str(best.agent.messages[-1].get("extra", {}).get("submission", ""))
        return Solved(found.best.score or 0.0, found.steps, found.skipped, found.merged, submission)


def whole_runs(
    make: Callable[[WorldEnvironment], DefaultAgent], environment: WorldEnvironment, task: Task, n: int
) -> list[tuple[float, int]]:
    """The usual way: `n` runs of the agent's own loop from the start. The score and the turns of each."""
    done = []
    with ExitStack() as stack:
        for fork in environment.fork(n) if n else []:
            agent = make(stack.enter_context(fork))
            agent.run(task.text)
            done.append((score_of(fork, task.check), agent.n_calls))
    return done
