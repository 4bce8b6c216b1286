"""`ramify resume`. It executes code that a run's rows name, so it first checks who owns the home."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramify.cli.commands.execution import (
    Finished,
    RunOptions,
    duration_option,
    finish,
    perform,
    run_options,
    show_result,
)
from ramify.cli.commands.thread_resume import AnswersGiven, ThreadResume
from ramify.cli.completion import run_names
from ramify.cli.console import pass_home, run_async, say, say_json
from ramify.cli.errors import Interrupted
from ramify.inspect.home import Home, find_state, require_run
from ramify.runtime.errors import RunError, RunNotFound
from ramify.runtime.records import DECORATORS, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.runtime.langgraph.app.world_app import WorldApp
    from ramify.runtime.store.reader import Reader
    from ramify.session import Runtime


trust_option = click.option(
    "--trust-home",
    is_flag=True,
    help="Also in a home that belongs to another user, or that others may write to.",
)


class HomeNotTrusted(RunError):
    """Others wrote the home, or may have: its rows say which code is to be run."""


def need_own_home(home: Home) -> None:
    """Raises `HomeNotTrusted`. A server's database is the server's to guard."""
    from ramify.runtime.store.address import parse

    if (why := next(_strange([home.folder, *parse(home.database).files]), None)) is not None:
        raise HomeNotTrusted(
            f"{why}. To go on with a run is to run the code that its rows name, and others could have written them. "
            "Look at the run first (`ramify show`, `ramify log` run nothing); if you trust it: --trust-home"
        )


def _strange(places: list[Path]) -> Iterator[str]:
    me = os.geteuid()
    for place in places:
        try:
            status = place.stat()
        except OSError:
            continue
        if status.st_uid != me:
            yield f"{place} belongs to {_user(status.st_uid)}"
        elif status.st_mode & stat.S_IWOTH and not _is_closed(place):
            yield f"{place} may be written to by anybody"
        elif status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid) and not _is_closed(place):
            yield f"{place} may be written to by its group"


def _is_closed(place: Path) -> bool:
    """Whether nobody else gets at it: the folder that it lies in is the user's alone."""
    status = place.parent.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _is_private(group: int) -> bool:
    """Whether it is the user's own group, as many systems give each user one."""
    import grp
    import pwd

    try:
        me, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == me.pw_name and set(found.gr_mem) <= {me.pw_name}


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


@click.command("resume")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--deadline", metavar="DURATION", callback=duration_option, help="A new one, counted from now.")
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
    """Go on with a RUN where its journal ends (without RUN: the newest that is not done).

    What it did already is not done again: not a step, not a model call. A LangGraph thread is invoked with None, or
    with the answer to its interrupt; its graph is found where it was compiled.

    \b
    Example: ramify resume 3f2a --answer '"yes"'
             ramify resume 3f2a --answer 9c01d2e4=true --answer 77ab01cd=false
             ramify resume 3f2a --app agent.py:app
    """
    if not trust_home:
        need_own_home(home)
    given = _given(answers)
    record = home.read(lambda store: _unfinished(home, store) if run is None else require_run(store, run))
    choices = RunOptions(**options)
    if (show_changes or accept_changes) and record.frontend != DECORATORS:
        raise click.UsageError(f"a LangGraph thread goes on with its graph as it is: run {record.id} needs no option")
    if show_changes:
        _show_changes(home, record, as_json=choices.as_json)
        return
    if record.frontend != DECORATORS:
        _resume_thread(home, record, choices, target, ThreadResume(given, deadline, back_to))
        return
    if target is not None:
        raise click.UsageError(f"--app is for LangGraph threads: run {record.id} is a workflow's, which is known")

    async def go_on(runtime: Runtime) -> Any:
        checkpoint = None if back_to is None else await _checkpoint(runtime, back_to)
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
        say(f"`ramify resume {record.id} --accept-changes` goes on like this", err=True)


def _resume_thread(home: Home, record: RunRecord, choices: RunOptions, target: str | None, how: ThreadResume) -> None:
    from ramify.cli.commands import thread_resume
    from ramify.cli.commands.explain import change_lines, compared
    from ramify.cli.progress import Progress
    from ramify.compiler.plan import Plan, PlanError

    if record.thread_id is None:
        raise RunError(f"run {record.id} is a graph's without a thread: it kept nothing to go on from")
    if (choices.base_url, choices.model, choices.api_key) != (None, None, None):
        raise click.UsageError("a graph's model is named where it is compiled: ramify.compile(graph, base_url=…)")
    thread_resume.set_home_variables(home)
    graph = thread_resume.find_app(record, target)
    if not choices.quiet:
        with suppress(PlanError):  # a plan that nobody reads any more: it cannot be compared, and nothing rests on it
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
    from ramify.cli.commands.thread_resume import go_on
    from ramify.session import Runtime

    async with Runtime(home=home.folder, database=home.database) as runtime:
        checkpoint = None if how.back_to is None else await _checkpoint(runtime, how.back_to)
        result = await go_on(graph, runtime, record, how, checkpoint)
        return await finish(runtime, result, record.id, apply=choices.apply)


async def _checkpoint(runtime: Runtime, text: str) -> str:
    place = await find_state(runtime.store, text)
    if place.checkpoint is None:
        raise RunError(f"{text} names no checkpoint: `ramify tree` lists them")
    return place.checkpoint.id


async def _unfinished(home: Home, store: Reader) -> RunRecord:
    for run in await store.runs():
        if run.status is not RunStatus.DONE and home.status(run) not in (RunStatus.RUNNING, RunStatus.DONE):
            return run
    raise RunNotFound("every run is done or still at work: `ramify ls` lists them, name one to go on with")


def _given(texts: Sequence[str]) -> AnswersGiven:
    """Raises `click.UsageError` where it is not clear which answer is for which question."""
    from ramify.inspect.values import parse_value
    from ramify.runtime.journal.inbox import named_answer

    by_id: dict[str, Any] = {}
    alone: tuple[Any] | None = None
    for id, text in map(named_answer, texts):
        if id is None and alone is None:
            alone = (parse_value(text),)
        elif id is None or id in by_id:
            raise click.UsageError("--answer was given twice for one question: name each, --answer ID=JSON")
        else:
            by_id[id] = parse_value(text)
    if alone is not None and by_id:
        raise click.UsageError(f"which question is {alone[0]!r} for? Name it too: --answer ID=JSON")
    return AnswersGiven(by_id, alone)
