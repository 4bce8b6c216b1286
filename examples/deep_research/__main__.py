"""`python -m examples.deep_research QUESTION [--corpus FOLDER]`: what a folder of texts says about a question.

Without a folder it reads the documentation of this project.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from ramify import Runtime

from ..ending import command, report_errors
from .workflow import research

OWN_DOCS = Path(__file__).resolve().parents[2] / "docs"


async def ask(options: argparse.Namespace) -> None:
    async with Runtime(home=options.home, base_url=options.base_url) as runtime:
        workspace, deadline = options.corpus, options.deadline
        report = await runtime.run(
            research, options.question, options.breadth, workspace=workspace, deadline=deadline
        )
        print(report.text)
        for note in report.notes:
            how = "summed up" if note.summed_up else "quoted for want of time"
            print(f"{note.file}: {how}, from {', '.join(note.sources)}", file=sys.stderr)
        print(f"its worlds: {command(f'tree {runtime.last_run_id}', options.home)}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.deep_research", description=__doc__)
    parser.add_argument("question", nargs="?", default="What happens after a crash between an intent and its result?")
    parser.add_argument("--corpus", type=Path, default=OWN_DOCS, help="a folder of .md and .txt files")
    parser.add_argument("--breadth", type=int, default=5, help="queries (default: 5)")
    parser.add_argument("--deadline", default="2m", help="for the whole run (default: 2m)")
    parser.add_argument("--home", type=Path, help="where runs and snapshots are kept (default: ramify's own)")
    parser.add_argument("--base-url", help="an OpenAI-compatible server (default: the embedded model)")
    options = parser.parse_args()
    with report_errors():
        asyncio.run(ask(options))


if __name__ == "__main__":
    main()
