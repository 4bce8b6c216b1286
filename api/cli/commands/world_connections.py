"""`ramify world connections` and `allow`, and the options of other commands that are about egress."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ramify.cli.console import pass_home, say, say_all, say_json
from ramify.inspect.home import Home
from ramify.inspect.text import instant, printable, table

if TYPE_CHECKING:
    from ramify.sandboxes.egress.connection_log import Connection
    from ramify.sandboxes.egress.settings import Header

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def allow_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--allow",
        "allow",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Let the world connect to this host. Repeatable.  [default: no network]",
    )(command)


def credential_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--credential",
        "credentials",
        multiple=True,
        metavar="HOST=HEADER",
        help="Add this header to requests to HOST, such as 'api.example.org=Authorization: Bearer $KEY' with a "
        "variable of this environment. The world never sees it; no state keeps it. Repeatable.",
    )(command)


def read_credentials(given: tuple[str, ...], variables: Mapping[str, str] | None = None) -> dict[str, Header]:
    """`HOST=NAME: text $VARIABLE`. A value written out would be in the list of processes and in the shell's history,
    so it is refused. Raises `click.BadParameter`, `BadCredential`."""
    from ramify.sandboxes.egress.settings import Header

    known = os.environ if variables is None else variables
    found: dict[str, Header] = {}
    for one in given:
        host, equals, header = one.partition("=")
        name, colon, value = header.partition(":")
        used = [plain or braced for plain, braced in _VARIABLE.findall(value)]
        if not (equals and colon and host and used):
            raise click.BadParameter(
                f"the credential for {host[:80]!r} is not HOST=HEADER: … $VARIABLE. Write it in single quotes, so "
                "that the shell leaves the variable's name",
                param_hint="--credential",
            )
        if unset := [variable for variable in used if variable not in known]:
            raise click.BadParameter(f"the variable {unset[0]} is not set", param_hint="--credential")
        filled = _VARIABLE.sub(lambda match: known[match[1] or match[2]], value)
        found[host] = Header(name.strip(), filled.strip())
    return found


@click.command("connections")
@click.argument("name")
@click.option("--refused", is_flag=True, help="List only what was refused.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@pass_home
def connections_command(home: Home, name: str, refused: bool, as_json: bool) -> None:
    """List the connections that the world NAME made or tried.

    The oldest comes first. The log keeps the newest connections, and forgets older ones.

    \b
    Example: ramify world connections one --refused
    """
    from ramify import paths
    from ramify.sandboxes.egress.connection_log import ConnectionFiles, Outcome
    from ramify.worlds.references import Kind, References

    references = References(paths.references(home.folder))
    references.get(Kind.WORLD, name)
    found = ConnectionFiles(references.connections(name)).read()
    found = [one for one in found if not refused or one.outcome is Outcome.REFUSED]
    if as_json:
        say_json([asdict(one) for one in found])
        return
    if not found:
        say(f"the world {name} made no connections" if not refused else f"nothing was refused to the world {name}")
        return
    say_all(table(("TIME", "PROTOCOL", "HOST", "SENT", "RECEIVED", "OUTCOME"), map(_row, found)))


def _row(one: Connection) -> tuple[str, ...]:
    outcome = f"{one.outcome.value}: {one.why}" if one.why else one.outcome.value
    place = f"{one.host}:{one.port}" if one.port else one.host
    return instant(one.at), one.protocol, printable(place), str(one.sent), str(one.received), printable(outcome)


@click.command("allow")
@click.argument("name")
@click.argument("entries", nargs=-1, metavar="[HOST[:PORT]]...")
@click.option("--none", "nothing", is_flag=True, help="Allow nothing.")
@pass_home
def allow_command(home: Home, name: str, entries: tuple[str, ...], nothing: bool) -> None:
    """Let the world NAME connect to these hosts alone.

    The list holds from the world's next command on, and replaces the earlier one. Without hosts, print the list.

    \b
    Example: ramify world allow one pypi.org '*.pythonhosted.org' 127.0.0.1:8000
    """
    from ramify import paths
    from ramify.sandboxes.egress.settings import Egress
    from ramify.worlds.home import WorldHome
    from ramify.worlds.references import Kind, References

    if nothing and entries:
        raise click.UsageError("name hosts or --none, not both")
    references = References(paths.references(home.folder))
    if not nothing and not entries:
        for entry in references.get(Kind.WORLD, name).egress or ():
            say(entry)
        return
    egress = Egress(entries)
    with references.held(name):
        WorldHome(home.folder).egress_changed(references.get(Kind.WORLD, name), egress)
