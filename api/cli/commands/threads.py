"""`ramify threads`: move LangGraph threads between LangGraph's own savers and Ramify's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ramify.cli.console import CommandHome, pass_home, say, say_json
from ramify.cli.targets import load
from ramify.inspect.text import count

if TYPE_CHECKING:
    from ramify.runtime.langgraph.checkpointer.thread_copies import CopiedThread

_thread_option = click.option(
    "--thread", "threads", multiple=True, metavar="ID", help="Only this thread; may be repeated. Default: all."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("threads")
def threads_group() -> None:
    """Move LangGraph threads between LangGraph's savers (SqliteSaver, PostgresSaver and their async forms) and
    Ramify's.

    Checkpoints, their history, interrupts and subgraphs are copied; the source stays as it is. Stop the programs that
    run the threads first. A copy that was cut off is finished by the same command. A thread that has gone on in the
    target is never overwritten.

    \b
    Example:
      ramify threads import sqlite:///checkpoints.sqlite
      ramify threads export postgresql://localhost/agents --thread 42
    """


@threads_group.command("import")
@click.argument("source", metavar="ADDRESS")
@click.option("--to", "target", metavar="ADDRESS", help="The database of a ramify.Saver.  [default: the home's own]")
@_thread_option
@_json_option
@pass_home
def import_command(
    home: CommandHome, source: str, target: str | None, threads: tuple[str, ...], as_json: bool
) -> None:
    """Copy threads of a LangGraph saver into the home.

    `ramify.graph.saver()` finds them there. ADDRESS is sqlite:///FILE, a path, or postgresql://HOST/DATABASE.

    \b
    Example: ramify threads import sqlite:///checkpoints.sqlite
    """
    from ramify.runtime.langgraph.checkpointer.thread_copies import copy_all, langgraph_threads, saver_threads

    if target is None:
        home.require_usable()
        home.folder.mkdir(parents=True, exist_ok=True)
    with (
        langgraph_threads(source) as theirs,
        saver_threads(target or home.database, keep_exact=True, create=True) as ours,
    ):
        _show(copy_all(theirs, ours, threads or None), as_json)


@threads_group.command("export")
@click.argument("target", metavar="ADDRESS")
@click.option(
    "--from", "source", metavar="ADDRESS", help="The database of a ramify.Saver.  [default: the home's own]"
)
@click.option(
    "--load",
    "modules",
    multiple=True,
    metavar="FILE.py|MODULE",
    help="Load this first, because it defines types of the threads' values. Repeatable.",
)
@_thread_option
@_json_option
@pass_home
def export_command(
    home: CommandHome,
    target: str,
    source: str | None,
    modules: tuple[str, ...],
    threads: tuple[str, ...],
    as_json: bool,
) -> None:
    """Copy threads of the home for a LangGraph saver.

    ADDRESS is the saver's database, which is made if it is missing: sqlite:///FILE, a path, or
    postgresql://HOST/DATABASE.

    Values that LangGraph's own form would change are written in LangGraph's form. That needs their types: --load
    names what defines them.

    \b
    Example: ramify threads export sqlite:///checkpoints.sqlite --load agent.py
    """
    from ramify.runtime.langgraph.checkpointer.thread_copies import copy_all, langgraph_threads, saver_threads

    for module in modules:
        load(f"{module}:__name__")
    with (
        saver_threads(source or home.database, keep_exact=False) as ours,
        langgraph_threads(target, create=True) as theirs,
    ):
        _show(copy_all(ours, theirs, threads or None), as_json)


def _show(copied: Sequence[CopiedThread], as_json: bool) -> None:
    checkpoints, new = sum(one.checkpoints for one in copied), sum(one.new for one in copied)
    if as_json:
        rows = [{"thread": one.thread, "checkpoints": one.checkpoints, "new": one.new} for one in copied]
        say_json({"threads": rows, "checkpoints": checkpoints, "new": new})
    else:
        there = "" if new == checkpoints else f", {checkpoints - new} of them there before"
        say(f"{count(len(copied), 'thread')}, {count(checkpoints, 'checkpoint')}{there}")
