"""The Tab key where a command wants a run or a state: the names that fit what is written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from ramify import paths
from ramify.cli.app import App
from ramify.cli.errors import is_ours
from ramify.cli.words import age
from ramify.runtime import refs

if TYPE_CHECKING:
    from ramify.runtime.store.reader import Reader

_MOST = 50  # of a kind: more are no help


def run_names(context: click.Context, parameter: click.Parameter, written: str) -> list[CompletionItem]:
    """The newest runs."""
    return _found(context, written, states=False)


def state_names(context: click.Context, parameter: click.Parameter, written: str) -> list[CompletionItem]:
    """The newest runs, and the checkpoints that begin with what is written, where anything is."""
    return _found(context, written, states=True)


def _found(context: click.Context, written: str, *, states: bool) -> list[CompletionItem]:
    app = _app(context)
    try:
        return app.look(lambda store: _read(store, written, states=states))
    except Exception as error:
        if not (is_ours(error) or isinstance(error, OSError)):
            raise
        return []  # whoever presses Tab is not shown errors: the command itself will say what is wrong


def _app(context: click.Context) -> App:
    """What the group's function would have made: no command runs while a shell asks."""
    given = context.find_root().params
    home: Path | None = given.get("home")
    return App(paths.home(home), database_given=given.get("database"))


async def _read(store: Reader, written: str, *, states: bool) -> list[CompletionItem]:
    now = time.time()
    runs = await store.runs(_MOST)
    found = [
        CompletionItem(str(run.id), help=f"{run.name}, {age(now - run.created_at)}")
        for run in runs
        if run.id.startswith(written)
    ]
    if runs and not written:
        return [CompletionItem(refs.NEWEST, help="the newest run"), *found]
    if states and written.isalnum():
        found += [CompletionItem(name, help=label) for name, label in await store.checkpoint_names(written, _MOST)]
    return found
