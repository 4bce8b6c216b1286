"""`python -m examples.data_cleaning`: clean a messy table by trying recipes in forks."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from ramify import Runtime

from ..ending import command, report_errors
from .workflow import clean_table


async def run(options: argparse.Namespace) -> None:
    async with Runtime(home=options.home, base_url=options.base_url) as runtime:
        for column in await runtime.run(clean_table, beam=options.beam):
            said = ", ".join(column.recipes) or "nothing to do"
            print(f"{column.name:8} {said} ({column.tried} tried)")
            for cell in column.left:
                print(f"         still wrong: {cell!r}")
        run = runtime.last_run_id
        table, tried = (command(words, options.home) for words in (f"checkout {run} DIR", f"tree {run}"))
        print(f"the table: {table}; what was tried: {tried}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.data_cleaning", description=__doc__)
    parser.add_argument("--beam", type=int, default=4, help="recipes tried at once on a column (default: 4)")
    parser.add_argument("--home", type=Path, help="where runs and snapshots are kept (default: ramify's own)")
    parser.add_argument("--base-url", help="an OpenAI-compatible server (default: the embedded model)")
    options = parser.parse_args()
    with report_errors():
        asyncio.run(run(options))


if __name__ == "__main__":
    main()
