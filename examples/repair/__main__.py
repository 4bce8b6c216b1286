"""`python -m examples.repair`: repair the programs beside this file, or those in a folder of the same layout."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import click

from ramify import Runtime, paths
from ramify.cli import errors
from ramify.cli.console import LocationOptions
from ramify.cli.progress import Progress

from ..ending import command
from .report import RepairReport
from .suite import find_programs
from .traced import serving
from .workflow import repair

HERE = Path(__file__).parent / "programs"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--programs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=HERE,
    show_default="ours",
    help="A folder with a folder for each program: its .py files and its pytest suite.",
)
@click.option("--only", metavar="NAME", multiple=True, help="Only this program. Repeatable.")
@click.option(
    "--budget", type=click.IntRange(min=1), default=120, show_default=True, help="Forks a program may take."
)
@click.option(
    "--apply", is_flag=True, help="Write the repaired files into the folder. Without it, it stays as it is."
)
@click.option("--base-url", help="An OpenAI-compatible server, in place of the embedded model.")
@click.option("--model", help="The model's name there.")
@click.option("--engine", metavar="local|vllm|URL", help="The model behind a gateway of this run's own.")
@click.option("--trace", is_flag=True, help="With --engine: how the deadline went from the workflow to the engine.")
@click.option(
    "--sandbox", type=click.Choice(["namespaces", "copy"]), help="How worlds are made. copy isolates nothing."
)
@click.option("--deadline", metavar="DURATION", help="For the whole run; the model's calls carry it.  [default: 10m]")
@click.option("--home", type=click.Path(path_type=Path), help="Where state is kept.  [default: as ramify]")
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
def main(
    programs: Path,
    only: tuple[str, ...],
    budget: int,
    apply: bool,
    base_url: str | None,
    model: str | None,
    engine: str | None,
    trace: bool,
    sandbox: str | None,
    deadline: str | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Repair small Python programs by search over copy-on-write worlds, with a small model's help."""
    if importlib.util.find_spec("pytest") is None:
        raise click.UsageError("the programs' tests need pytest: pip install -e '.[examples]'")
    names = [name for name in find_programs(programs) if not only or name in only]
    if missing := set(only) - set(names):
        raise click.UsageError(f"no such program in {programs}: {', '.join(sorted(missing))}")
    if not names:
        raise click.UsageError(f"{programs} holds no programs: it needs a folder with .py files for each")

    if trace and engine is None:
        raise click.UsageError("--trace needs --engine")

    async def run() -> tuple[RepairReport, str | None]:
        async with AsyncExitStack() as stack:
            served = None
            if engine is not None:
                served = await stack.enter_async_context(serving(engine, home=paths.home(home), model=model))
            progress = stack.enter_context(Progress.for_stream(sys.stderr))
            runtime = await stack.enter_async_context(
                Runtime(
                    home=home,
                    sandbox=sandbox,
                    base_url=base_url,
                    model=model,
                    llm=served and served.client,
                    observer=progress,
                )
            )
            report = await runtime.run(repair, names, budget, workspace=programs, deadline=deadline)
            if apply:
                await runtime.apply()
            if served is not None and trace:
                for line in served.trace(await runtime.record(), await runtime.llm_calls()):
                    click.echo(line)
            return report, runtime.last_run_id

    try:
        report, run_id = asyncio.run(run())
    except KeyboardInterrupt:
        click.echo(f"stopped: `{command('resume', home)}` goes on where it was", err=True)
        sys.exit(130)
    except Exception as error:  # noqa: BLE001  a bug of ours is raised again
        sys.exit(errors.report(error, LocationOptions(home)))
    if as_json:
        click.echo(
            json.dumps({"repaired": report.repaired, "rows": [dataclasses.asdict(row) for row in report.rows]})
        )
    else:
        click.echo(str(report))
        diff, files, tree = (command(f"{words} {run_id}", home) for words in ("diff", "checkout", "tree"))
        where = f"written to {programs}" if apply else f"`{diff}`, `{files} DIR`"
        click.echo(f"the edits: {where}; the search: `{tree}`", err=True)
    sys.exit(0 if report.repaired == report.broken else 1)


main()
