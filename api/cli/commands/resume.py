"""`ramify resume`. It executes code that a run's rows name, so it first checks who owns the home."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ramify.cli.commands.run import (
    Finished,
    RunOptions,
    finish,
    perform,
    run_options,
    show_result,
)
from ramify.cli.commands.thread_resume import (
    AnswersGiven,
    ThreadResume,
    find_app,
    resume_thread,
    set_home_variables,
)
from ramify.cli.completion import run_names
from ramify.cli.console import answer_text, pass_home, run_async, say, say_json
from ramify.cli.errors import Interrupted
from ramify.cli.time_options import duration_option
from ramify.cli.trust import RUNS_CODE, need_own_home, trust_option
from ramify.inspect.home import Home, require_checkpoint, require_run
from ramify.runtime.errors import RunError, RunNotFound
from ramify.runtime.records import DECORATORS, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.runtime.langgraph.app.world_app import WorldApp
    from ramify.runtime.store.reader import Reader
    from ramify.session import Runtime


@click.command("resume")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--deadline", metavar="DURATION", callback=duration_option, help="A new deadline, counted from now.")
@click.option(
    "--from",
    "back_to",
    metavar="STATE",
    help="First go back to this checkpoint of the branch root: later steps run again, and irreversible effects are "
    "compensated if their steps say how.",
)
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="[ID=]JSON",
    help="The answer to the question that it waits for, as JSON or text, or - to read it from the standard input; if "
    "it waits for several, with the ID that `ramify inbox` lists. Repeatable.",
)
@click.option(
    "--show-changes",
    is_flag=True,
    help="After a change of the code: only say which recorded results stay and which steps run again.",
)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Continue with the changed code. --show-changes says what runs again; refused if it is uncertain which call "
    "a recorded result belongs to.",
)
@click.option(
    "--app",
    "target",
    metavar="FILE.py:NAME",
    help="For a LangGraph thread: the result of `ramify.compile`, or a function that returns it.  [default: the only "
    "app of that name in the file that compiled it]",
)
@trust_option
@run_options
@pass_home
def resume_command(
    home: Home,
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
    """Continue a RUN where its journal ends (by default the newest that is not done).

    Recorded steps and model calls are not run again. A LangGraph thread is invoked with None, or with the answer to
    its interrupt; its graph is loaded from the file that compiled it.

    \b
    Example: ramify resume 3f2a --answer '"yes"'
             ramify resume 3f2a --answer 9c01d2e4=true --answer 77ab01cd=false
             ramify resume 3f2a --app agent.py:app
    """
    if not trust_home:
        need_own_home(home, RUNS_CODE)
    given = _given(answers)
    record = home.read(
        lambda store: _unfinished(home, store) if run is None else require_run(store, run), whole=False
    )
    choices = RunOptions(**options)
    if (show_changes or accept_changes) and record.frontend != DECORATORS:
        raise click.UsageError(
            f"a LangGraph thread continues with its graph as it is: run {record.id} needs no such option"
        )
    if show_changes:
        _show_changes(home, record, as_json=choices.as_json)
        return
    if record.frontend != DECORATORS:
        _resume_thread(home, record, choices, target, ThreadResume(given, deadline, back_to))
        return
    if choices.fleet is not None and (deadline, back_to, accept_changes) != (None, None, False):
        raise click.UsageError("--fleet takes no --deadline, --from or --accept-changes")
    if target is not None:
        raise click.UsageError(f"--app is for LangGraph threads: run {record.id} belongs to a workflow")

    async def go_on(runtime: Runtime) -> Any:
        if choices.fleet is not None:
            async with choices.open_fleet(runtime) as fleet:
                alone = {} if given.alone is None else {"answer": given.alone[0]}
                return await fleet.resume(record.id, answers=given.by_id, **alone)
        checkpoint = None if back_to is None else await require_checkpoint(runtime.store, back_to)
        how: dict[str, Any] = {"deadline": deadline, "back_to": checkpoint, "accept_changes": accept_changes}
        if given.alone is not None:
            how["answer"] = given.alone[0]
        return await runtime.resume(record.id, answers=given.by_id, **how)

    perform(home, choices, go_on, record.settings.sandbox)


def _show_changes(home: Home, record: RunRecord, *, as_json: bool) -> None:
    from dataclasses import asdict

    from ramify.session import Runtime

    async def look() -> Any:
        async with Runtime(home=home.folder, database=home.database) as runtime:
            return await runtime.changes_of_code(record.id)

    changes = run_async(look())
    if as_json:
        say_json({"run": record.id, **asdict(changes)})
        return
    say(str(changes))
    if changes.refused:
        say(f"`ramify resume {record.id} --accept-changes` would be refused", err=True)
    elif changes != type(changes)(()):
        say(f"`ramify resume {record.id} --accept-changes` continues like this", err=True)


def _resume_thread(home: Home, record: RunRecord, choices: RunOptions, target: str | None, how: ThreadResume) -> None:
    from ramify.cli.commands.explain import change_lines, compared
    from ramify.cli.progress import Progress
    from ramify.compiler.plan import Plan, PlanError

    if choices.fleet is not None:
        raise click.UsageError(f"--fleet is for workflows: run {record.id} belongs to a LangGraph thread")
    if record.thread_id is None:
        raise RunError(
            f"run {record.id} belongs to a graph without a thread: there is no checkpoint to continue from"
        )
    if (choices.base_url, choices.model, choices.api_key) != (None, None, None):
        raise click.UsageError("name a graph's model where it is compiled: ramify.compile(graph, base_url=…)")
    set_home_variables(home)
    graph = find_app(record, target)
    if not choices.quiet:
        with suppress(PlanError):  # a plan of a format that is no longer read cannot be compared
            changed = compared(Plan.from_json(record.plan_json), graph.session.plan, record.frontend)
            for line in change_lines(changed, record.frontend) if changed.workflow or changed.steps else ():
                say(line, style="yellow", err=True)
    with Progress.for_stream(sys.stderr, quiet=choices.quiet) as progress, graph:
        graph.session.observer = choices.observer(progress)
        try:
            finished = run_async(_thread_to_the_end(home, graph, record, choices, how))
        except KeyboardInterrupt:
            raise Interrupted(record.id) from None
    show_result(finished, choices)


async def _thread_to_the_end(
    home: Home, graph: WorldApp, record: RunRecord, choices: RunOptions, how: ThreadResume
) -> Finished:
    from ramify.session import Runtime

    async with Runtime(home=home.folder, database=home.database) as runtime:
        checkpoint = None if how.back_to is None else await require_checkpoint(runtime.store, how.back_to)
        result = await resume_thread(graph, runtime, record, how, checkpoint)
        return await finish(runtime, result, record.id, choices)


async def _unfinished(home: Home, store: Reader) -> RunRecord:
    runs = await store.runs()
    for run in runs:
        if run.status is not RunStatus.DONE and home.status(run) not in (RunStatus.RUNNING, RunStatus.DONE):
            return run
    if not runs:
        raise RunNotFound(f"no runs yet in {home.location}: start one with `ramify run FILE.py:NAME`")
    raise RunNotFound("every run is done or still running: name one to resume (`ramify ls` lists them)")


def _given(texts: Sequence[str]) -> AnswersGiven:
    """Raises `click.UsageError` if it is unclear which answer is for which question."""
    from ramify.inspect.values import parse_value
    from ramify.runtime.journal.inbox import named_answer

    by_id: dict[str, Any] = {}
    alone: tuple[Any] | None = None
    typed = [named_answer(text) for text in texts]
    if sum(text == "-" for _, text in typed) > 1:
        raise click.UsageError("--answer - reads the standard input, which holds one answer: type the others")
    for id, text in typed:
        given = parse_value(answer_text(text))
        if id is None and alone is None:
            alone = (given,)
        elif id is None or id in by_id:
            raise click.UsageError("--answer was given twice for one question: name the questions, --answer ID=JSON")
        else:
            by_id[id] = given
    if alone is not None and by_id:
        raise click.UsageError(f"which question is {alone[0]!r} for? Name it: --answer ID=JSON")
    return AnswersGiven(by_id, alone)
