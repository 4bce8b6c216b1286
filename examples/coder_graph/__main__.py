"""`python -m examples.coder_graph`: repair a small project, then go back in time and continue from there."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import uuid
from pathlib import Path

import ramify
import ramify.graph
from examples.coder_graph.edits import shown
from examples.coder_graph.graph import build
from examples.ending import command, report_errors

PROJECT = Path(__file__).parent / "project"


async def demo(app: ramify.graph.WorldGraph, thread: str, home: Path | None = None) -> None:
    config = {"configurable": {"thread_id": thread}}
    print(f"Repairing {PROJECT.name}/ (thread {thread})")
    await follow(app, {}, config)

    print("\nIts checkpoints, oldest first, and the files that changed since the one before:")
    history = list(app.get_state_history(config))  # newest first
    for now, before in reversed(list(itertools.pairwise(history))):
        changed = ", ".join(change.path for change in ramify.graph.changes(app, before.config, now.config))
        print(f"  {now.metadata['step']:3}  then {', '.join(now.next) or 'the end':7} {changed}")

    end, back = history[0], next(state for state in history if state.next == ("plan",))
    print(f"\nBack to step {back.metadata['step']}, with {len(back.values['failing'])} failing; on from there:")
    await follow(app, None, back.config)

    fork = next(state for state in app.get_state_history(config) if state.metadata["source"] == "fork")
    for change in ramify.graph.changes(app, back.config, end.config):
        then, began, last = (
            hashlib.sha256(ramify.graph.read(app, state.config, change.path)).hexdigest()[:8]
            for state in (back, fork, end)
        )
        print(f"\n{change.path}: {last} at the end, {then} at step {back.metadata['step']},")
        print(f"and {began} where the branch began: the files went back with the state")
    print(f"Both lines: {command(f'tree {app.session.last_run_id}', home)}")


async def follow(app: ramify.graph.WorldGraph, inputs: object, config: object) -> None:
    """Run the graph to its end, and print what each node did."""
    async for update in app.astream(inputs, config):
        for node, values in update.items():
            print(f"  {node:6} {said(node, values)}")


def said(node: str, values: dict[str, object]) -> str:
    match node, values:
        case "test", {"failing": list(failing), "tree": tree}:
            return f"{len(failing)} failing on the tree {tree}"
        case "plan", {"target": target}:
            return f"works on {target}"
        case "act", {"edit": None}:
            return "has no idea left"
        case "act", {"edit": dict(edit)}:
            return shown(edit)
        case "tools", {"tried": _}:
            return "did not help: taken back"
    return "made the test pass"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.coder_graph", description=__doc__)
    parser.add_argument("--home", type=Path, help="where runs and snapshots are kept (default: ramify's own)")
    parser.add_argument("--sandbox", default="namespaces", choices=["namespaces", "copy"])
    parser.add_argument("--base-url", help="an OpenAI-compatible server (default: the embedded model)")
    parser.add_argument("--model", help="its model")
    options = parser.parse_args()
    with (
        report_errors(),
        ramify.graph.saver(options.home) as saver,
        ramify.compile(
            build(),
            PROJECT,
            deadline="10m",
            checkpointer=saver,
            name="coder",
            home=options.home,
            sandbox=options.sandbox,
            base_url=options.base_url,
            model=options.model,
        ) as app,
    ):
        asyncio.run(demo(app, f"coder-{uuid.uuid4().hex[:8]}", options.home))


if __name__ == "__main__":
    main()
