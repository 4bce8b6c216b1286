"""All commands of the command line, with those below groups."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ramify.cli.main import cli
from ramify.cli.registry import ENTRIES


def every_command() -> dict[str, click.Command]:
    """The commands by their whole name, such as "world new"."""
    tops = {name: cli.get_command(click.Context(cli), name) for name in ENTRIES}
    return {name: one for top, command in tops.items() if command for name, one in _below(command, top)}


def _below(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for each, inner in command.commands.items():
            yield from _below(inner, f"{name} {each}")
