"""`python -m examples.rollouts`: collect rollouts of one task, and print how much of their work was shared."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.runtime.records import LLMRecord, OpRecord

from ..ending import command, report_errors
from .workflow import Trajectory, collect


@dataclass(frozen=True)
class Shared:
    """How much of the tool work was reused instead of done."""

    calls: int
    reused: int
    done_s: float  # seconds of the calls that were done

    @classmethod
    def of(cls, journal: list[OpRecord]) -> Shared:
        calls = [row for row in journal if row.kind is OpKind.RUN]
        done = [row.ended_at - row.started_at for row in calls if row.reused_from is None]
        return cls(len(calls), len(calls) - len(done), sum(done))


def report(trajectories: list[Trajectory], shared: Shared, calls: list[LLMRecord]) -> str:
    rewards = [trajectory.reward for trajectory in trajectories]
    solved = sum(reward == 1.0 for reward in rewards)
    again = sum(call.reused_from is not None for call in calls)
    each = shared.done_s / max(1, shared.calls - shared.reused)
    return (
        f"{len(rewards)} rollouts, mean reward {sum(rewards) / len(rewards):.2f}, {solved} solved the task\n"
        f"tool calls    {shared.calls} asked for, {shared.reused} reused ({shared.reused / shared.calls:.0%}), "
        f"about {each * shared.reused:.1f} s saved at {each:.2f} s each\n"
        f"policy calls  {len(calls)} asked for, {again} reused ({again / len(calls):.0%})"
    )


async def run(options: argparse.Namespace) -> None:
    async with Runtime(home=options.home, base_url=options.base_url, reuse_answers=True) as runtime:
        found = await runtime.run(collect, options.rollouts, options.turns, options.temperature)
        options.output.write_text("".join(json.dumps(asdict(one)) + "\n" for one in found))
        print(report(found, Shared.of(await runtime.journal()), await runtime.llm_calls()))
        worlds = command(f"tree {runtime.last_run_id}", options.home)
        print(f"trajectories in {options.output}; their worlds: {worlds}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.rollouts", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=16, help="how many (default: 16)")
    parser.add_argument("--turns", type=int, default=4, help="actions of a rollout, at most (default: 4)")
    parser.add_argument("--temperature", type=float, default=0.5, help="the policy's (default: 0.5)")
    parser.add_argument("--output", type=Path, default=Path("rollouts.jsonl"), help="default: rollouts.jsonl")
    parser.add_argument("--home", type=Path, help="where runs and snapshots are kept (default: ramify's own)")
    parser.add_argument("--base-url", help="an OpenAI-compatible server (default: the embedded model)")
    options = parser.parse_args()
    with report_errors():
        asyncio.run(run(options))


if __name__ == "__main__":
    main()
