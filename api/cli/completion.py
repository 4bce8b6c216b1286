"""Completion by Tab: `ramify completion`, and the names of runs and states."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from ramify import paths
from ramify.cli.errors import is_ours
from ramify.inspect.home import Home
from ramify.inspect.text import age
from ramify.runtime.journal import refs

if TYPE_CHECKING:
    from ramify.runtime.store.reader import Reader

VARIABLE = "_RAMIFY_COMPLETE"
"""The variable that the shell sets when it asks `ramify` for completions, as click names it."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the code that SHELL reads to complete `ramify` by Tab: commands, options, runs and states.

    \b
    Example: ramify completion bash >> ~/.bashrc
             ramify completion zsh >> ~/.zshrc
             ramify completion fish > ~/.config/fish/completions/ramify.fish
    """
    made = get_completion_class(shell)
    assert made is not None, "click knows these three"
    click.echo(made(context.find_root().command, {}, "ramify", VARIABLE).source())


_MOST = 50  # of each kind


def run_names(context: click.Context, parameter: click.Parameter, written: str) -> list[CompletionItem]:
    """Complete the newest runs."""
    return _found(context, written, states=False)


def state_names(context: click.Context, parameter: click.Parameter, written: str) -> list[CompletionItem]:
    """Complete the newest runs, and the checkpoints that start with the text."""
    return _found(context, written, states=True)


def _found(context: click.Context, written: str, *, states: bool) -> list[CompletionItem]:
    home = _home(context)
    try:
        return home.read(lambda store: _read(store, written, states=states), whole=False)
    except Exception as error:
        if not (is_ours(error) or isinstance(error, OSError)):
            raise
        return []  # Tab shows no errors: the command itself will report them


def _home(context: click.Context) -> Home:
    """The home that the options name. The command group made none: during completion no command runs."""
    given = context.find_root().params
    folder: Path | None = given.get("home")
    return Home(paths.home(folder), database_given=given.get("database"))


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
