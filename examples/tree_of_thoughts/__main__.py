"""`python -m examples.tree_of_thoughts [NUMBER NUMBER NUMBER NUMBER] [--beam N]`: the game of 24."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from ramify import Runtime

from ..ending import command, report_errors
from .workflow import solve


async def play(numbers: list[int], beam: int, home: Path | None, base_url: str | None) -> int:
    async with Runtime(home=home, base_url=base_url) as runtime:
        answer = await runtime.run(solve, numbers, beam)
        print(
            f"{answer.solution} = 24" if answer.solution else f"no way to 24 was found with {beam} thoughts a table"
        )
        print(f"{answer.worlds} worlds forked, {len(await runtime.llm_calls())} model calls")
        print(f"the tree of thoughts: {command(f'tree {runtime.last_run_id}', home)}")
        return 0 if answer.solution else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.tree_of_thoughts", description=__doc__)
    parser.add_argument("numbers", type=int, nargs="*", default=[4, 7, 8, 8])
    parser.add_argument("--beam", type=int, default=6, help="thoughts tried from each table (default: 6)")
    parser.add_argument("--home", type=Path, help="where runs and snapshots are kept (default: ramify's own)")
    parser.add_argument("--base-url", help="an OpenAI-compatible server (default: the embedded model)")
    options = parser.parse_args()
    with report_errors():
        return asyncio.run(play(options.numbers, options.beam, options.home, options.base_url))


if __name__ == "__main__":
    sys.exit(main())
