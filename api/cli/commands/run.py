"""`ramify run` and `ramify resume`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ramify.cli.commands.resume import need_own_home, trust_option
from ramify.cli.completion import run_names
from ramify.cli.console import App, find, need_run, pass_app, say, say_json
from ramify.cli.errors import Interrupted
from ramify.inspect.text import count, harmless
from ramify.runtime.errors import RunError, RunNotFound
from ramify.runtime.records import DECORATORS, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.fork_engine.types import Change
    from ramify.runtime.events import Event, Observer
    from ramify.runtime.langgraph.app.world_app import WorldApp
    from ramify.runtime.store.reader import Reader
    from ramify.session import Runtime

Command = TypeVar("Command", bound=Callable[..., Any])


def _duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    from ramify.runtime.durations import seconds

    try:
        return None if value is None else seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def _keywords(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", context, parameter)
    return {name: text for name, _, text in pairs}


@dataclass(frozen=True, slots=True)
class Choices:
    """How to run, as both commands take it."""

    base_url: str | None
    model: str | None
    api_key: str | None
    apply: bool
    as_json: bool
    quiet: bool
    metrics: Path | None

    def observer(self, progress: Observer) -> Observer:
        """What hears the run: its progress, and the counters where they are asked for."""
        if self.metrics is None:
            return progress
        from ramify.metrics import RunMetrics

        counted = RunMetrics(self.metrics)

        def both(event: Event) -> None:
            progress(event)
            counted(event)

        return both


def run_options(command: Command) -> Command:
    """The options that `run` and `resume` share."""
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="No progress."),
        click.option(
            "--metrics",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write Prometheus counters of the run here when it ends.",
        ),
        click.option("--json", "as_json", is_flag=True, help="One object: run, status, result, changes."),
        click.option("--apply", is_flag=True, help="Write what the run changed into the workspace when it is done."),
        click.option("--api-key", envvar="RAMIFY_API_KEY", help="For --base-url.  [default: $RAMIFY_API_KEY]"),
        click.option("--model", help="The model's name at the server, or of the embedded models."),
        click.option("--base-url", help="An OpenAI-compatible server, in place of the embedded model."),
    ):
        command = option(command)
    return command


@click.command("run")
@click.argument("words", nargs=-1, metavar="TARGET [ARGS]...")
@click.option(
    "--arg",
    "keywords",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_keywords,
    help="An argument by name. Repeatable.",
)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    help="The folder that the worlds start from; it is not written to.  [default: the workflow's own]",
)
@click.option(
    "--deadline",
    metavar="DURATION",
    callback=_duration,
    help="For the whole run: 90, 90s, 5m.  [default: the workflow's own]",
)
@click.option(
    "--sandbox",
    type=click.Choice(["namespaces", "docker", "copy"]),
    help="How worlds are made. copy needs nothing of the kernel and isolates nothing.  "
    "[default: $RAMIFY_SANDBOX or namespaces]",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Run under this plan (see `ramify compile`), without compiling; TARGET is the plan's own.",
)
@run_options
@pass_app
def run_command(
    app: App,
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

    Each of ARGS, and each VALUE of --arg, is JSON where it parses, else text; always text for a parameter that is a
    `str`. The result goes to stdout, progress
    to stderr. Whatever ends the run, `ramify resume` goes on with it.

    \b
    Example: ramify run agent.py:repair gcd --workspace ./repo --deadline 5m
    """
    from ramify.cli.targets import arguments, load_workflow
    from ramify.code_changes import since
    from ramify.compiler.plan import Plan

    plan = None if plan_file is None else Plan.from_json(plan_file.read_text())
    if plan is None and not words:
        raise click.UsageError("name what to run: FILE.py:NAME or MODULE:NAME")
    target, given = (words[0], words[1:]) if plan is None else (plan.workflow, words)
    workflow = load_workflow(target)
    choices = Choices(**options)
    if choices.apply and workspace is None and workflow.workspace is None:
        raise click.UsageError("--apply needs a workspace to write to: name it with --workspace")
    args, kwargs = arguments(workflow, given, keywords)
    if plan is not None and (changed := since(plan, workflow).told()) is not None:
        say(f"warning: {changed}", style="yellow", err=True)

    async def start(runtime: Runtime) -> Any:
        return await runtime.start(workflow, args, kwargs, workspace=workspace, deadline=deadline, plan=plan)

    _perform(app, choices, start, sandbox)


@click.command("resume")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--deadline", metavar="DURATION", callback=_duration, help="A new one, counted from now.")
@click.option(
    "--from",
    "back_to",
    metavar="STATE",
    help="Go back to this checkpoint of its root branch first: what was done later is done anew, and effects on the "
    "outside are compensated where their steps say how.",
)
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="[ID=]JSON",
    help="To the question that it waits for; with its ID, as `ramify inbox` lists it, where it waits for several. "
    "Text where it is no JSON. Repeatable.",
)
@click.option(
    "--show-changes",
    is_flag=True,
    help="After a change of the code: say which recorded results stay and which steps run again, and do nothing.",
)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on with the changed code. What it runs again is what --show-changes says; refused where nobody can tell "
    "which call a recorded result belongs to.",
)
@click.option(
    "--app",
    "target",
    metavar="FILE.py:NAME",
    help="Of a LangGraph thread: what `ramify.compile` returned, or a function that returns it.  [default: the only "
    "one of its name in the file that compiled it]",
)
@trust_option
@run_options
@pass_app
def resume_command(
    app: App,
    /,
    run: str | None,
    deadline: float | None,
    back_to: str | None,
    answers: tuple[str, ...],
    show_changes: bool,
    accept_changes: bool,
    target: str | None,
    trust_home: bool,
    **options: Any,
) -> None:
    """Go on with a RUN where its journal ends (without RUN: the newest that is not done).

    What it did already is not done again: not a step, not a model call. A LangGraph thread is invoked with None, or
    with the answer to its interrupt; its graph is found where it was compiled.

    \b
    Example: ramify resume 3f2a --answer '"yes"'
             ramify resume 3f2a --answer 9c01d2e4=true --answer 77ab01cd=false
             ramify resume 3f2a --app agent.py:app
    """
    if not trust_home:
        need_own_home(app)
    given = _given(answers)
    record = app.look(lambda store: _unfinished(app, store) if run is None else need_run(store, run))
    choices = Choices(**options)
    if (show_changes or accept_changes) and record.frontend != DECORATORS:
        raise click.UsageError(f"a LangGraph thread goes on with its graph as it is: run {record.id} needs no option")
    if show_changes:
        _show_changes(app, record, as_json=choices.as_json)
        return
    if record.frontend != DECORATORS:
        _resume_thread(app, record, choices, target, ThreadResume(given, deadline, back_to))
        return
    if target is not None:
        raise click.UsageError(f"--app is for LangGraph threads: run {record.id} is a workflow's, which is known")

    async def go_on(runtime: Runtime) -> Any:
        checkpoint = None if back_to is None else await _checkpoint(runtime, back_to)
        how: dict[str, Any] = {"deadline": deadline, "back_to": checkpoint, "accept_changes": accept_changes}
        if given.alone is not None:
            how["answer"] = given.alone[0]
        return await runtime.resume(record.id, answers=given.by_id, **how)

    _perform(app, choices, go_on, record.settings.sandbox)


def _show_changes(app: App, record: RunRecord, *, as_json: bool) -> None:
    from dataclasses import asdict

    from ramify.session import Runtime

    async def look() -> Any:
        async with Runtime(home=app.home, database=app.database) as runtime:
            return await runtime.changes_of_code(record.id)

    changes = app.run(look())
    if as_json:
        say_json({"run": record.id, **asdict(changes)})
        return
    say(str(changes))
    if changes.refused:
        say(f"`ramify resume {record.id} --accept-changes` would be refused", err=True)
    elif changes != type(changes)(()):
        say(f"`ramify resume {record.id} --accept-changes` goes on like this", err=True)


def _resume_thread(app: App, record: RunRecord, choices: Choices, target: str | None, onward: ThreadResume) -> None:
    from ramify.cli.commands import thread_resume
    from ramify.cli.commands.explain import change_lines, compared
    from ramify.cli.progress import Progress
    from ramify.compiler.plan import Plan, PlanError

    if record.thread_id is None:
        raise RunError(f"run {record.id} is a graph's without a thread: it kept nothing to go on from")
    if (choices.base_url, choices.model, choices.api_key) != (None, None, None):
        raise click.UsageError("a graph's model is named where it is compiled: ramify.compile(graph, base_url=…)")
    thread_resume.set_home_variables(app)
    graph = thread_resume.find_app(record, target)
    if not choices.quiet:
        with suppress(PlanError):  # a plan that nobody reads any more: it cannot be compared, and nothing rests on it
            changed = compared(Plan.from_json(record.plan_json), graph.session.plan, record.frontend)
            for line in change_lines(changed, record.frontend) if changed.workflow or changed.steps else ():
                say(line, style="yellow", err=True)
    with Progress.for_stream(sys.stderr, quiet=choices.quiet) as progress, graph:
        graph.session.observer = choices.observer(progress)
        try:
            finished = app.run(_thread_to_the_end(app, graph, record, choices, onward))
        except KeyboardInterrupt:
            raise Interrupted(record.id) from None
    _show(finished, choices)


async def _thread_to_the_end(
    app: App, graph: WorldApp, record: RunRecord, choices: Choices, onward: ThreadResume
) -> Finished:
    from ramify.cli.commands.thread_resume import go_on
    from ramify.session import Runtime

    async with Runtime(home=app.home, database=app.database) as runtime:
        checkpoint = None if onward.back_to is None else await _checkpoint(runtime, onward.back_to)
        result = await go_on(graph, runtime, record, onward, checkpoint)
        return await _finished(runtime, result, record.id, apply=choices.apply)


async def _checkpoint(runtime: Runtime, text: str) -> str:
    place = await find(runtime.store, text)
    if place.checkpoint is None:
        raise RunError(f"{text} names no checkpoint: `ramify tree` lists them")
    return place.checkpoint.id


async def _unfinished(app: App, store: Reader) -> RunRecord:
    for run in await store.runs():
        if run.status is not RunStatus.DONE and app.status(run) not in (RunStatus.RUNNING, RunStatus.DONE):
            return run
    raise RunNotFound("every run is done or still at work: `ramify ls` lists them, name one to go on with")


@dataclass(frozen=True, slots=True)
class AnswersGiven:
    """`alone`: the answer that names no question, in a tuple; None where there is none."""

    by_id: Mapping[str, Any]
    alone: tuple[Any] | None = None


def _given(texts: Sequence[str]) -> AnswersGiven:
    """Raises `click.UsageError` where it is not clear which answer is for which question."""
    from ramify.cli.targets import argument
    from ramify.runtime.journal.inbox import named_answer

    by_id: dict[str, Any] = {}
    alone: tuple[Any] | None = None
    for id, text in map(named_answer, texts):
        if id is None and alone is None:
            alone = (argument(text),)
        elif id is None or id in by_id:
            raise click.UsageError("--answer was given twice for one question: name each, --answer ID=JSON")
        else:
            by_id[id] = argument(text)
    if alone is not None and by_id:
        raise click.UsageError(f"which question is {alone[0]!r} for? Name it too: --answer ID=JSON")
    return AnswersGiven(by_id, alone)


@dataclass(frozen=True, slots=True)
class ThreadResume:
    """How a thread goes on. `back_to`: as the user named it."""

    answers: AnswersGiven
    deadline_s: float | None = None
    back_to: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    run: RunRecord
    result: Any
    changes: list[Change]
    applied: bool


def _perform(app: App, choices: Choices, work: Callable[[Runtime], Awaitable[Any]], sandbox: str | None) -> None:
    from ramify.cli.progress import Progress
    from ramify.session import Runtime

    with Progress.for_stream(sys.stderr, quiet=choices.quiet) as progress:
        runtime = Runtime(
            home=app.home,
            database=app.database,
            sandbox=sandbox,
            base_url=choices.base_url,
            api_key=choices.api_key,
            model=choices.model,
            observer=choices.observer(progress),
        )
        try:
            finished = app.run(_to_the_end(runtime, work, apply=choices.apply))
        except KeyboardInterrupt:
            raise Interrupted(runtime.last_run_id) from None
    _show(finished, choices)


async def _to_the_end(runtime: Runtime, work: Callable[[Runtime], Awaitable[Any]], *, apply: bool) -> Finished:
    async with runtime:
        return await _finished(runtime, await work(runtime), None, apply=apply)


async def _finished(runtime: Runtime, result: Any, run_id: str | None, *, apply: bool) -> Finished:
    run = await runtime.record(run_id)
    changes = await (runtime.apply(run_id) if apply and run.workspace else runtime.changes(run_id))
    return Finished(run, result, changes, applied=apply)


def _in_short(result: Any) -> Any:
    """An agent's state is its messages: what it said last, as a workflow would have returned it; beside other state
    their number, too. `--json` has them all."""
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


def _show(finished: Finished, choices: Choices) -> None:
    from ramify.cli.commands.diff import change_lines, change_object
    from ramify.cli.targets import plain

    run, result = finished.run, finished.result
    if choices.as_json:
        say_json(
            {
                "run": run.id,
                "status": run.status.value,
                "result": plain(result),
                "changes": [change_object(change) for change in finished.changes],
                "applied": finished.applied,
            }
        )
        return
    if run.frontend != DECORATORS:
        result = _in_short(result)
    if isinstance(result, str) or "__str__" in vars(type(result)):
        click.echo(harmless(str(result), sys.stdout))
    elif result is not None:
        say_json(plain(result))
    if finished.changes and not choices.quiet:
        for line in change_lines(finished.changes[:10]):
            say(f"  {line}", err=True)
        more = len(finished.changes) - 10
        if more > 0:
            say(f"  and {more} more", err=True)
        where = f"written to {run.workspace}" if finished.applied else f"`ramify diff {run.id}` shows them, "
        how = "" if finished.applied else f"`ramify checkout {run.id} DIR` writes them out"
        say(f"{count(len(finished.changes), 'path')} changed: {where}{how}", err=True)
