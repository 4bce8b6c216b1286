"""Rollouts of one task, as for reinforcement learning: a policy acts, tools answer, a reward is measured.

Every rollout is a fork of the prepared world. At each turn the policy gives a probability to every action. One is
drawn, its log-probability is recorded, and a tool makes the edit and runs the checks. The tool is declared
deterministic (`reuse=True`): if two rollouts are in equal worlds and do the same, the second takes over the result
*and the files* of the first. Rollouts begin alike, and many of their paths meet again, so most tool work is done
once.

What a rollout draws depends only on its seed and its path: an interrupted collection continues as it would have.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

from ramify import Sandbox, fork, llm, step, workflow

EDITS: tuple[tuple[str, str], ...] = (
    ("sum(prices[1:])", "sum(prices)"),
    ("sum(prices[1:])", "max(prices)"),
    ("price - percent", "price * percent / 100"),
    ("price - percent", "price - price * percent / 100"),
    ("price - paid", "paid - price"),
    ("price - paid", "paid + price"),
    ("max(prices)", "min(prices)"),
    ("max(prices)", "sum(prices)"),
)
STOP = "leave it as it is"


@dataclass(frozen=True)
class Seen:
    """What the tool shows to the policy."""

    source: str
    right: tuple[str, ...]
    reward: float


@dataclass(frozen=True)
class Turn:
    action: str
    logprob: float  # natural log of the action's probability, at the policy's temperature
    reward: float  # after the action


@dataclass(frozen=True)
class Trajectory:
    seed: int
    turns: tuple[Turn, ...]

    @property
    def reward(self) -> float:
        return self.turns[-1].reward


@step(reuse=True)
async def prepare(sandbox: Sandbox) -> Seen:
    """Do the work that all rollouts share. A real task would install its packages here."""
    await sandbox.run("python3 -m compileall -q checks.py", check=True)
    return await checked(sandbox)


@step(reuse=True)
async def edit(sandbox: Sandbox, old: str, new: str) -> Seen:
    """The tool: make an edit and run the checks."""
    path = sandbox.path / "shop.py"
    path.write_text(path.read_text().replace(old, new, 1))
    return await checked(sandbox)


async def checked(sandbox: Sandbox) -> Seen:
    ran = await sandbox.run("python3 -B checks.py", check=True)
    said = json.loads(ran.stdout)
    return Seen((sandbox.path / "shop.py").read_text(), tuple(said["right"]), said["reward"])


async def draw(seen: Seen, temperature: float, chance: random.Random) -> tuple[int | None, str, float]:
    """Draw an action: which edit (None: stop), its text, and its log-probability."""
    known = [at for at, (old, _) in enumerate(EDITS) if old in seen.source]
    words = [*(f"{EDITS[at][0]} -> {EDITS[at][1]}" for at in known), STOP]
    right = ", ".join(seen.right) or "none"
    asked = await llm.choose(f"```python\n{seen.source}```\nRight so far: {right}. Which edit is best?", words)
    scaled = [score / temperature for score in asked.scores]
    norm = max(scaled) + math.log(sum(math.exp(score - max(scaled)) for score in scaled))
    picked = chance.choices(range(len(words)), weights=[math.exp(score - norm) for score in scaled])[0]
    return (known[picked] if picked < len(known) else None), words[picked], scaled[picked] - norm


async def roll_out(seed: int, seen: Seen, turns: int, temperature: float) -> Trajectory:
    chance = random.Random(seed)
    taken: list[Turn] = []
    for _ in range(turns):
        at, words, logprob = await draw(seen, temperature, chance)
        if at is not None:
            seen = await edit(*EDITS[at])
        taken.append(Turn(words, logprob, seen.reward))
        if at is None or seen.reward == 1.0:
            break
    return Trajectory(seed, tuple(taken))


@workflow(workspace=Path(__file__).with_name("task"), deadline="30m")
async def collect(rollouts: int = 16, turns: int = 4, temperature: float = 0.5, width: int = 4) -> list[Trajectory]:
    """Collect `rollouts` trajectories of at most `turns` actions, `width` of them at a time."""
    seen = await prepare()
    gate = asyncio.Semaphore(width)
    async with fork(range(rollouts)) as branches:

        async def one(branch: object) -> Trajectory:
            async with gate, branch.enter():
                return await roll_out(branch.item, seen, turns, temperature)

        return list(await asyncio.gather(*(one(branch) for branch in branches)))
