"""`python -m examples.agent_search`: solve a task with mini-swe-agent by search, and by whole runs to compare."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..ending import report_errors

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")  # read at its import: no banner in the output

try:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import get_config_from_spec
    from minisweagent.models import get_model
except ImportError:
    sys.exit("error: this example needs mini-swe-agent: pip install 'ramify[mini-swe-agent]'")

from ramify.integrations.mini_swe_agent import WorldEnvironment

from .scripted import ScriptedModel
from .solve import Breadth, Solved, Task, solve, whole_runs

PROJECT = Path(__file__).parent / "project"
TEMPLATES = {"system_template": "You fix bugs.", "instance_template": "{{task}}"}
MakeAgent = Callable[[WorldEnvironment], DefaultAgent]


def agent_maker(options: argparse.Namespace) -> MakeAgent:
    """Agents that share one model: the scripted one, or the named one with mini-swe-agent's own configuration."""
    if options.model is None:
        scripted = ScriptedModel(options.seed)
        return lambda environment: DefaultAgent(scripted, environment, cost_limit=0, **TEMPLATES)
    config = get_config_from_spec(options.config)
    settings = config.get("model", {})
    settings.setdefault("model_kwargs", {})["temperature"] = options.temperature
    model = get_model(options.model, settings)
    templates = {name: config["agent"][name] for name in TEMPLATES}
    return lambda environment: DefaultAgent(model, environment, cost_limit=options.cost_limit, **templates)


def report(solved: Solved, whole: list[tuple[float, int]]) -> str:
    lines = [
        f"search        {solved.turns} turns: {solved.score:.0%} of the checks pass",
        f"              not executed: {solved.equal} equal answers; dropped: {solved.met} states met before",
    ]
    if whole:
        best, turns = max(score for score, _ in whole), sum(turns for _, turns in whole)
        lines.append(f"{len(whole)} whole runs  {turns} turns: {best:.0%} of the checks pass in the best")
    return "\n".join(lines)


async def run(options: argparse.Namespace) -> None:
    task = Task(options.task, options.check)
    breadth = Breadth(options.width, options.keep, options.depth)
    with WorldEnvironment(folder=str(options.folder), sandbox=options.sandbox, home=options.home) as environment:
        solved = await solve(agent_maker(options)(environment), task, breadth, options.output)
        whole = await asyncio.to_thread(whole_runs, agent_maker(options), environment, task, options.whole)
    print(report(solved, whole))
    if options.output is not None:
        print(f"the best branch's files: {options.output}")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.agent_search", description=__doc__)
    parser.add_argument("--folder", type=Path, default=PROJECT, help="what to work on; it is not changed")
    parser.add_argument("--task", default="Make all checks of checks.py pass.", help="what the agent is asked to do")
    parser.add_argument("--check", default="python3 -B checks.py", help='a command; "3 passed, 1 failed" counts')
    parser.add_argument("--model", help="a model as mini-swe-agent names it (default: a scripted one, offline)")
    parser.add_argument("--config", default="mini", help="mini-swe-agent's configuration, with --model")
    parser.add_argument("--temperature", type=float, default=1.0, help="with --model; answers must differ")
    parser.add_argument("--cost-limit", type=float, default=3.0, help="dollars of a branch, with --model")
    parser.add_argument("--seed", type=int, default=0, help="of the scripted model")
    parser.add_argument("--width", type=int, default=5, help="answers at a state (default: 5)")
    parser.add_argument("--keep", type=int, default=2, help="states of a depth that go on (default: 2)")
    parser.add_argument("--depth", type=int, default=8, help="turns of a branch, at most (default: 8)")
    parser.add_argument("--whole", type=int, default=0, help="whole runs to compare with (default: none)")
    parser.add_argument("--output", type=Path, help="a new folder for the best branch's files")
    parser.add_argument("--sandbox", choices=["namespaces", "copy"], help="default: as ramify's")
    parser.add_argument("--home", help="where worlds are kept (default: ramify's own)")
    with report_errors():
        asyncio.run(run(parser.parse_args(words)))


if __name__ == "__main__":
    main()
