"""`ramify models`: the weights of the embedded model."""

from __future__ import annotations

import click

from ramify.cli.app import App, pass_app, say, say_all, say_json
from ramify.cli.words import table


@click.group("models")
def models_group() -> None:
    """The weights of the embedded models.

    \b
    Example: ramify models pull
    """


@models_group.command("pull")
@click.argument("name", required=False)
@click.option("--verify", is_flag=True, help="Check the sha256 of weights that are here already.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing unless it fails.")
@pass_app
def pull_command(app: App, name: str | None, verify: bool, quiet: bool) -> None:
    """Fetch the weights of a model (the default one) unless they are here.

    \b
    Example: ramify models pull --verify
    """
    from ramify.serving import models

    def progress(line: str) -> None:
        if not quiet:
            say(line, err=True)

    path = models.pull(app.home, name or models.DEFAULT, verify=verify, progress=progress)
    if not quiet:
        say(str(path))


@models_group.command("ls")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@pass_app
def list_command(app: App, as_json: bool) -> None:
    """The models that can be pulled, and where their weights lie.

    \b
    Example: ramify models ls --json
    """
    from ramify.cli.doctor import models_here
    from ramify.serving import models

    here = models_here(app)
    if as_json:
        say_json(
            [
                {
                    "name": one.name,
                    "bytes": one.size,
                    "sha256": one.sha256,
                    "licence": one.licence,
                    "path": here[name],
                }
                for name, one in models.KNOWN.items()
            ]
        )
        return
    rows = [
        (name, f"{one.size // 1_000_000} MB", one.licence, here[name] or "not here: `ramify models pull`")
        for name, one in models.KNOWN.items()
    ]
    say_all(table(("NAME", "SIZE", "LICENCE", "PLACE"), rows, right=("SIZE",)))
