"""`ramify run`: run a workflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramify.cli.commands.execution import RunOptions, duration_option, perform, run_options
from ramify.cli.console import pass_home, say
from ramify.inspect.home import Home

if TYPE_CHECKING:
    from ramify.session import Runtime


def _keywords(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", context, parameter)
    return {name: text for name, _, text in pairs}


@click.command("run")
@click.argument("words", nargs=-1, metavar="TARGET [ARGS]...")
@click.option(
    "--arg",
    "keywords",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_keywords,
    help="Pass an argument by name. Repeatable.",
)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    help="The folder that the worlds start from; it is never written to.  [default: the workflow's own]",
)
@click.option(
    "--deadline",
    metavar="DURATION",
    callback=duration_option,
    help="The deadline of the whole run: 90, 90s, 5m.  [default: the workflow's own]",
)
@click.option(
    "--sandbox",
    type=click.Choice(["namespaces", "docker", "copy"]),
    help="The sandbox backend. copy works everywhere and isolates nothing.  [default: $RAMIFY_SANDBOX or namespaces]",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Run under this plan (see `ramify compile`) without compiling; it names the TARGET.",
)
@run_options
@pass_home
def run_command(
    home: Home,
    /,
    words: tuple[str, ...],
    keywords: dict[str, str],
    workspace: Path | None,
    deadline: float | None,
    sandbox: str | None,
    plan_file: Path | None,
    **options: Any,
) -> None:
    """Run the workflow TARGET (FILE.py:NAME or MODULE:NAME) with ARGS.

    Each of ARGS, and each VALUE of --arg, is JSON if it parses, otherwise text; for a parameter that is a `str`,
    always text. The result goes to stdout, progress to stderr. However the run ends, `ramify resume` continues it.

    \b
    Example: ramify run agent.py:repair gcd --workspace ./repo --deadline 5m
    """
    from ramify.cli.targets import arguments, load_workflow
    from ramify.code_changes import since
    from ramify.compiler.plan import Plan

    plan = None if plan_file is None else Plan.from_json(plan_file.read_text())
    if plan is None and not words:
        raise click.UsageError("name the workflow: FILE.py:NAME or MODULE:NAME")
    target, given = (words[0], words[1:]) if plan is None else (plan.workflow, words)
    workflow = load_workflow(target)
    choices = RunOptions(**options)
    if choices.apply and workspace is None and workflow.workspace is None:
        raise click.UsageError("--apply needs a workspace to write to: give --workspace")
    args, kwargs = arguments(workflow, given, keywords)
    if plan is not None and (changed := since(plan, workflow).told()) is not None:
        say(f"warning: {changed}", style="yellow", err=True)

    async def start(runtime: Runtime) -> Any:
        how: dict[str, Any] = {"workspace": workspace, "deadline": deadline, "plan": plan}
        if choices.fleet is None:
            return await runtime.start(workflow, args, kwargs, **how)
        async with choices.open_fleet(runtime) as fleet:
            return await fleet.start(workflow, args, kwargs, **how)

    perform(home, choices, start, sandbox)
