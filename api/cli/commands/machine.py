"""`ramify doctor` and `ramify models`: what this machine supports, and the weights of the embedded models."""

from __future__ import annotations

import platform
import shlex
import sqlite3
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import click

from ramify import __version__, paths
from ramify.cli.console import pass_home, say, say_all, say_json
from ramify.inspect.home import Home
from ramify.inspect.text import table
from ramify.runtime.errors import StoreError

if TYPE_CHECKING:
    from ramify.sandboxes.capabilities import Capabilities


@click.group("models")
def models_group() -> None:
    """Download and list the weights of the embedded models.

    \b
    Example: ramify models pull
    """


@models_group.command("pull")
@click.argument("name", required=False)
@click.option("--verify", is_flag=True, help="Check the sha256 of weights that are already here.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing unless it fails.")
@pass_home
def pull_command(home: Home, name: str | None, verify: bool, quiet: bool) -> None:
    """Download the weights of a model, unless they are here.

    Without NAME, that is the default model.

    \b
    Example: ramify models pull --verify
    """
    from ramify.serving.engine import models

    def progress(line: str) -> None:
        if not quiet:
            say(line, err=True)

    path = models.pull(home.folder, name or models.DEFAULT, verify=verify, progress=progress)
    if not quiet:
        say(str(path))


@models_group.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@pass_home
def list_command(home: Home, as_json: bool) -> None:
    """List the models, and where their weights are.

    \b
    Example: ramify models ls --json
    """
    from ramify.serving.engine import models

    here = models_here(home)
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


DEFAULT_BACKEND = "namespaces"
LIBRARIES = ("langgraph", "sqlalchemy", "httpx", "starlette", "xllamacpp")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
@pass_home
def doctor_command(home: Home, context: click.Context, as_json: bool) -> None:
    """Check what this machine supports: sandboxes, the home, the model's weights, versions.

    The exit status is 1 if the default sandbox cannot run; the reason and a remedy are shown.

    \b
    Example: ramify doctor --json
    """
    from ramify.sandboxes.doctor import capabilities

    backends = capabilities(paths.worlds(home.folder))
    works = any(one.available for one in backends if one.backend == DEFAULT_BACKEND)
    if as_json:
        say_json(
            {
                "ok": works,
                "home": str(home.folder),
                "exposed": [str(one) for one in paths.exposed(home.folder, home.database)],
                "sandboxes": [_object(one) for one in backends],
                "models": models_here(home),
                "versions": _versions(),
            }
        )
    else:
        _show(home, backends)
    if not works:
        context.exit(1)


def _show(home: Home, backends: tuple[Capabilities, ...]) -> None:
    rows = [("works here", *(_yes(one.available) for one in backends))]
    rows += [(flag.feature.value, *(_yes(one.can(flag.feature)) for one in backends)) for flag in backends[0].flags]
    say_all(table(("SANDBOX", *(one.backend for one in backends)), rows))
    for one in backends:
        say()
        _say_why(one)
    say()
    say(f"home      {home.folder}" + ("" if home.has_runs else f" ({_why_no_runs(home)})"))
    for place in paths.exposed(home.folder, home.database):
        say(f"          other users may read {place}: chmod go= {shlex.quote(str(place))}", style="yellow")
    for name, weights in models_here(home).items():
        say(f"model     {name}: {weights or 'not here: `ramify models pull`'}")
    for name, version in _versions().items():
        say(f"{name:<9} {version}")


def _why_no_runs(home: Home) -> str:
    try:
        home.require_usable()
    except StoreError as error:
        return str(error)
    return "no runs yet"


def _say_why(one: Capabilities) -> None:
    """Print the reason for each feature that a backend lacks, and its notes."""
    if one.available:
        for flag in one.flags:
            if not flag.yes:
                say(f"{one.backend}, {flag.feature.value}: no. {flag.reason}")
    else:
        say(f"{one.backend}: {one.reason}", style="red")
        if one.backend == DEFAULT_BACKEND:
            say("  until then: `ramify run --sandbox copy`, which isolates nothing")
    for note in one.notes:
        say(f"{one.backend}: {note}", style="dim")


def models_here(home: Home) -> dict[str, str | None]:
    """The path of each known model's weights, None if they are missing."""
    from ramify.serving.engine import models
    from ramify.serving.errors import ModelMissing

    found: dict[str, str | None] = {}
    for name in models.KNOWN:
        try:
            found[name] = str(models.locate(home.folder, name))
        except ModelMissing:
            found[name] = None
    return found


def _object(one: Capabilities) -> dict[str, object]:
    return {
        "name": one.backend,
        "available": one.available,
        "reason": one.reason,
        "features": {
            flag.feature.name.lower(): {"yes": one.can(flag.feature), "reason": one.why_not(flag.feature)}
            for flag in one.flags
        },
        "notes": list(one.notes),
    }


def _versions() -> dict[str, str]:
    found = {
        "ramify": __version__,
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "sqlite": sqlite3.sqlite_version,
    }
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _yes(value: bool) -> str:
    return "yes" if value else "no"
