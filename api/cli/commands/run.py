"""`ramify run`: run a workflow; and what it shares with `ramify resume`: options, running to the end, and printing
the result."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ramify.cli.console import ACTIVE_FILES, json_text, pass_home, run_async, say, say_json, say_value, say_withheld
from ramify.cli.errors import Interrupted
from ramify.cli.path_options import NamedPath
from ramify.cli.time_options import duration_option
from ramify.inspect.home import Home
from ramify.inspect.text import LONGER, SHOWN, count, size_of
from ramify.runtime.records import DECORATORS, RunRecord

if TYPE_CHECKING:
    from ramify.compiler.plan import Plan
    from ramify.fleet.fleet import Fleet
    from ramify.fleet.types import FleetEvent
    from ramify.fork_engine.errors import RemoteError
    from ramify.fork_engine.types import Change, Withheld
    from ramify.runtime.events import Event, Observer
    from ramify.session import Runtime


Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options that `run` and `resume` share."""

    base_url: str | None
    model: str | None
    api_key: str | None
    apply: bool
    active_files: bool
    as_json: bool
    quiet: bool
    metrics: Path | None
    remote: str | None
    fleet: str | None

    def __post_init__(self) -> None:
        if self.active_files and not self.apply:
            raise click.UsageError("--active-files needs --apply")

    def open_fleet(self, runtime: Runtime) -> Fleet:
        """The nodes of --fleet, as an async context manager. What happens to them is printed to stderr."""
        from ramify.fleet.fleet import Fleet

        def tell(event: FleetEvent) -> None:
            say(str(event), err=True)

        assert self.fleet is not None
        return Fleet(runtime, self.fleet, observer=None if self.quiet else tell)

    def observer(self, progress: Observer) -> Observer:
        """The observer of the run: its progress, and the counters if they are asked for."""
        if self.metrics is None:
            return progress
        from ramify.metrics import RunMetrics

        counted = RunMetrics(self.metrics)

        def both(event: Event) -> None:
            progress(event)
            counted(event)

        return both


def run_options(command: Command) -> Command:
    """Add the options that `run` and `resume` share."""
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="Print no progress."),
        click.option(
            "--metrics",
            type=NamedPath(path_type=Path, dir_okay=False),
            help="Write Prometheus counters of the run to this file when it ends.",
        ),
        click.option(
            "--remote",
            metavar="URL",
            help="Upload each state to this bucket while the run goes on, and fetch states that are not here. "
            "s3://BUCKET/PREFIX, gs://…, az://ACCOUNT/CONTAINER, or a folder.",
        ),
        click.option(
            "--fleet",
            metavar="ADDRESS",
            help="Work on nodes of this Ray cluster: auto, HOST:PORT or ray://HOST:PORT of its head. Needs --remote.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object: run, status, result, changes."),
        click.option("--active-files", is_flag=True, help=f"With --apply. {ACTIVE_FILES}"),
        click.option("--apply", is_flag=True, help="Write the run's changes into the workspace when it is done."),
        click.option("--api-key", envvar="RAMIFY_API_KEY", help="For --base-url.  [default: $RAMIFY_API_KEY]"),
        click.option("--model", help="The model's name, at the server or among the embedded models."),
        click.option("--base-url", help="An OpenAI-compatible server instead of the embedded model."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that ended, with what it changed."""

    run: RunRecord
    result: Any
    changes: list[Change]
    applied: bool
    withheld: tuple[Withheld, ...] = ()


def perform(home: Home, choices: RunOptions, work: Callable[[Runtime], Awaitable[Any]], sandbox: str | None) -> None:
    from ramify.cli.commands.storage import collect_at_the_end, disk_policy
    from ramify.cli.progress import Progress
    from ramify.session import Runtime

    disk_policy()  # what is wrong with it is told before anything is done
    with Progress.for_stream(sys.stderr, quiet=choices.quiet) as progress:
        runtime = Runtime(
            home=home.folder,
            database=home.database,
            sandbox=sandbox,
            base_url=choices.base_url,
            api_key=choices.api_key,
            model=choices.model,
            observer=choices.observer(progress),
            remote=choices.remote,
        )
        try:
            finished, not_uploaded = run_async(_run_to_end(runtime, work, choices))
        except KeyboardInterrupt:
            raise Interrupted(runtime.last_run_id) from None
    show_result(finished, choices)
    collect_at_the_end(home)
    if not_uploaded is not None:
        say(f"the run is done, but not all of its states were uploaded: `ramify push {finished.run.id}`", err=True)
        raise not_uploaded


async def _run_to_end(
    runtime: Runtime, work: Callable[[Runtime], Awaitable[Any]], choices: RunOptions
) -> tuple[Finished, RemoteError | None]:
    from ramify.fork_engine.errors import RemoteError

    finished = None
    try:
        async with runtime:
            finished = await finish(runtime, await work(runtime), None, choices)
    except RemoteError as error:
        if finished is None:
            raise
        return finished, error
    return finished, None


async def finish(runtime: Runtime, result: Any, run_id: str | None, choices: RunOptions) -> Finished:
    run = await runtime.record(run_id)
    if choices.apply and run.workspace:
        written = await runtime.apply(run_id, active_files=choices.active_files)
        return Finished(run, result, written, applied=True, withheld=written.withheld)
    return Finished(run, result, await runtime.changes(run_id), applied=choices.apply)


def summarized(result: Any) -> Any:
    """A graph's result for people: of messages the last one, and beside other state also their number. `--json`
    prints all.
    """
    from ramify.runtime.langgraph.value_summary import line_of, messages_in, text_of

    if messages := messages_in(result):
        return text_of(messages[-1])
    if not isinstance(result, Mapping):
        return result
    found = {name: messages for name, value in result.items() if (messages := messages_in(value))}
    if len(found) == len(result) == 1:
        return text_of(next(iter(found.values()))[-1])
    last = {name: f"{count(len(them), 'message')}, the last: {line_of(them[-1])}" for name, them in found.items()}
    return {**result, **last} if found else result


def show_result(finished: Finished, choices: RunOptions) -> None:
    from ramify.cli.commands.diff import change_object
    from ramify.cli.targets import plain
    from ramify.inspect.facts import change_lines

    run, result = finished.run, finished.result
    if choices.as_json:
        say_json(
            {
                "run": run.id,
                "status": run.status.value,
                "result": plain(result),
                "changes": [change_object(change) for change in finished.changes],
                "applied": finished.applied,
                "withheld": [{"path": one.path, "reason": one.reason} for one in finished.withheld],
            }
        )
        return
    if run.frontend != DECORATORS:
        result = summarized(result)
    if isinstance(result, str) or "__str__" in vars(type(result)):
        _say_result(run, str(result))
    elif result is not None:
        _say_result(run, json_text(plain(result)))
    if finished.changes and not choices.quiet:
        for line in change_lines(finished.changes[:10]):
            say(f"  {line}", err=True)
        more = len(finished.changes) - 10
        if more > 0:
            say(f"  and {more} more", err=True)
        look = f"`ramify diff {run.id}` shows how, `ramify checkout {run.id} DIR` writes all files into a folder"
        where = f"written to {run.workspace}" if finished.applied else look
        say(f"{count(len(finished.changes), 'path')} changed: {where}", err=True)
    say_withheld(finished.withheld)


def _say_result(run: RunRecord, text: str) -> None:
    """Print a result: whole, but on a terminal only the beginning of a long one."""
    cut = sys.stdout.isatty() and len(text) > LONGER
    say_value(f"{text[:SHOWN]}…" if cut else text)
    if cut:
        size = size_of(text)
        say(f"the result has {size} in all: `ramify show {run.id} --json` prints it whole", style="dim", err=True)


def _keywords(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", context, parameter)
    return {name: text for name, _, text in pairs}


def _read_plan(file: Path) -> Plan:
    """Raises `PlanError`, which names the file."""
    from ramify.compiler.plan import Plan, PlanError

    try:
        return Plan.from_json(file.read_text())
    except UnicodeDecodeError as error:
        raise PlanError(f"{file} is no plan: it is not text. `ramify compile -o FILE` writes one") from error
    except PlanError as error:
        raise PlanError(f"{file}: {error}") from error


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
    type=NamedPath(path_type=Path),
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

    plan = None if plan_file is None else _read_plan(plan_file)
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
