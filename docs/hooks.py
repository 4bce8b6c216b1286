"""What the build writes into pages itself: the command line's own help, in place of `<!-- cli -->`."""

from __future__ import annotations

from collections.abc import Iterator

import click


def on_page_markdown(markdown: str, **_: object) -> str:
    return markdown.replace("<!-- cli -->", "\n".join(commands())) if "<!-- cli -->" in markdown else markdown


def commands() -> Iterator[str]:
    """A heading and the help of each command, the whole first."""
    from ramify.cli.main import cli

    with click.Context(cli, info_name="ramify") as context:
        yield from _helped(cli, context)


def _helped(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            with click.Context(child, info_name=name, parent=context) as inner:
                yield from _helped(child, inner)
