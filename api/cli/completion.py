"""`ramify completion`: what a shell has to read to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_RAMIFY_COMPLETE"
"""What the shell sets when it asks `ramify` itself for completions; click's own name for it."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print what SHELL has to read to complete `ramify` by Tab.

    \b
    Example: ramify completion bash >> ~/.bashrc
             ramify completion zsh >> ~/.zshrc
             ramify completion fish > ~/.config/fish/completions/ramify.fish
    """
    made = get_completion_class(shell)
    assert made is not None, "click knows these three"
    click.echo(made(context.find_root().command, {}, "ramify", VARIABLE).source())
