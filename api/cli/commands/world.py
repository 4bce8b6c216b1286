"""`ramify world`: named worlds. The commands here open a world, act, and store its new state."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ramify.cli.attach import interact, pass_through, terminal_size, until_told_to_end
from ramify.cli.commands.world_connections import (
    allow_command,
    allow_option,
    connections_command,
    credential_option,
    read_credentials,
)
from ramify.cli.commands.world_states import STATE_COMMANDS
from ramify.cli.console import pass_home, run_async, say, say_all, say_json
from ramify.cli.time_options import Seconds
from ramify.cli.trust import APART, need_own_home, trust_option
from ramify.inspect.home import Home
from ramify.inspect.text import age, table

if TYPE_CHECKING:
    from ramify.sandboxes.contract import RunResult
    from ramify.worlds.world import World

T = TypeVar("T")
TIMED_OUT = 124


@click.group("world")
def world_group() -> None:
    """Sandboxes without a workflow. A world has a name and keeps its state between commands: files, environment,
    directory, shell. Its background processes end with each command, unless its snapshot keeps them.

    \b
    Example:
      ramify world new repo --name one
      ramify world exec one -- make test
      ramify world fork one --name two
      ramify world merge one two
    """


def _sandbox_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--sandbox",
        type=click.Choice(["namespaces", "docker", "copy"]),
        help="The sandbox backend.  [default: the one that the world was made with]",
    )(command)


_env_option = click.option(
    "--env",
    "-e",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set a variable. NAME alone passes on this variable of yours, if it is set. Repeatable.",
)


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--user", "-u", metavar="USER", help="Run as this user of the world: a name or an id, also NAME:GROUP."
        ),
        _env_option,
        click.option("--cwd", metavar="DIR", help="The directory: absolute, or relative to the world's tree."),
    ):
        command = option(command)
    return command


@world_group.command("new")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", help="The world's name.  [default: a new one]")
@click.option("--from", "state", metavar="STATE", help="Start from a tag, a world or a snapshot instead of a folder.")
@click.option(
    "--image",
    metavar="IMAGE",
    help="An image (python:3.12, oci:FOLDER, docker:NAME), or a root file system: a folder or a tar.",
)
@_env_option
@click.option("--network", is_flag=True, help="Use this machine's network. By default a world has none.")
@allow_option
@click.option(
    "--dumpable",
    is_flag=True,
    help="Snapshots and forks keep the programs that its shell started. They run without the filter of system calls. "
    "`ramify doctor` says what this needs.",
)
@click.option(
    "--sandbox",
    type=click.Choice(["namespaces", "docker", "copy"]),
    help="The sandbox backend.  [default: $RAMIFY_SANDBOX or namespaces]",
)
@pass_home
def new_command(
    home: Home,
    folder: Path | None,
    name: str | None,
    state: str | None,
    image: str | None,
    env: tuple[str, ...],
    network: bool,
    allow: tuple[str, ...],
    dumpable: bool,
    sandbox: str | None,
) -> None:
    """Make a world and print its name.

    It starts from FOLDER, which is never changed, from the state of --from, or empty. Variables of --env are stored
    with it.

    \b
    Example:
      ramify world new repo --name one --env CI=1
      ramify world new --from before --name two
    """
    from ramify.worlds.world import World

    if folder is not None and state is not None:
        raise click.UsageError("name a folder or --from STATE, not both")
    called = name or f"world-{secrets.token_hex(3)}"
    variables = _variables(env)

    async def make() -> None:
        opening = World.create(
            folder,
            snapshot=state,
            name=called,
            image=image,
            env=variables,
            network=network,
            egress=allow or None,
            dumpable=dumpable,
            home=home.folder,
            sandbox=sandbox,
        )
        async with opening:
            pass

    run_async(make())
    say(called)


@world_group.command("ls")
@click.option("--tags", is_flag=True, help="List the tags of snapshots instead.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@pass_home
def ls_command(home: Home, tags: bool, as_json: bool) -> None:
    """List the worlds, newest first.

    \b
    Example: ramify world ls
    """
    from ramify import paths
    from ramify.worlds.references import Kind, References

    found = References(paths.references(home.folder)).all(Kind.TAG if tags else Kind.WORLD)
    if as_json:
        keys = ("name", "snapshot", "created_at", "updated_at", "backend", "mount_at", "image", "network", "source")
        say_json([{key: getattr(one, key) for key in keys} for one in found])
        return
    if not found:
        say(f"no {'tags' if tags else 'worlds'} yet in {home.folder}")
        return
    now = home.clock()
    rows = [(one.name, one.snapshot[:12], age(now - one.updated_at), one.backend, one.source) for one in found]
    say_all(table(("NAME", "SNAPSHOT", "CHANGED", "BACKEND", "FROM"), rows))


@world_group.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--shell", is_flag=True, help="Run in the world's persistent shell, which keeps what `cd` and `export` did."
)
@_place_options
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    metavar="SECONDS",
    help="After this time, kill what the command started; the exit status is 124.",
)
@click.option("-i", "--stdin", "--interactive", "stdin", is_flag=True, help="Pass standard input to the command.")
@click.option("-t", "--tty", is_flag=True, help="Connect the command with this terminal.")
@credential_option
@_sandbox_option
@trust_option
@pass_home
def exec_command(
    home: Home,
    name: str,
    command: tuple[str, ...],
    shell: bool,
    cwd: str | None,
    env: tuple[str, ...],
    user: str | None,
    timeout: float | None,
    stdin: bool,
    tty: bool,
    credentials: tuple[str, ...],
    sandbox: str | None,
    trust_home: bool,
) -> None:
    """Run COMMAND in the world NAME, and store what it changed.

    Write options before NAME. A COMMAND of one word is a line for bash; several words are run as they are. Output
    comes as the command writes it. The exit status is the command's own.

    \b
    Example:
      ramify world exec --timeout 60 one -- pytest -q
      ramify world exec -i one 'tar x' < files.tar
      ramify world exec -t one -- vim notes
    """
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise click.UsageError("name a command to run")
    line = words[0] if len(words) == 1 else list(words)
    if shell and (user is not None or tty):
        raise click.UsageError("the world's shell runs as the world's user and has no terminal: leave out --shell")
    if tty and not sys.stdin.isatty():
        raise click.UsageError("--tty needs a terminal as standard input: leave it out, or use -i")
    options: dict[str, Any] = {"env": _variables(env)}

    async def act(world: World) -> int:
        if shell:
            given = sys.stdin.buffer.read() if stdin else None
            return _shown(await world.run(line, cwd=cwd, stdin=given, timeout=timeout, **options))
        if tty:
            return await _within(timeout, _in_terminal(world, line, cwd=cwd, user=user, **options))
        return await _within(timeout, _streamed(world, line, stdin=stdin, cwd=cwd, user=user, **options))

    if not trust_home:
        need_own_home(home, APART)
    _in_world(home, name, sandbox, act, credentials)


@world_group.command("shell")
@click.argument("name")
@_place_options
@credential_option
@_sandbox_option
@trust_option
@pass_home
def shell_command(
    home: Home,
    name: str,
    cwd: str | None,
    env: tuple[str, ...],
    user: str | None,
    credentials: tuple[str, ...],
    sandbox: str | None,
    trust_home: bool,
) -> None:
    """Open an interactive bash in the world NAME.

    It has a terminal of its own. What it changed is stored when it ends. If standard input is no terminal, bash runs
    it as a script. The exit status is the shell's own.

    \b
    Example: ramify world shell one
    """
    options: dict[str, Any] = {"env": _variables(env), "cwd": cwd, "user": user}

    async def act(world: World) -> int:
        if sys.stdin.isatty():
            return await _in_terminal(world, None, **options)
        return await _streamed(world, 'exec "$BASH"', stdin=True, **options)

    if not trust_home:
        need_own_home(home, APART)
    _in_world(home, name, sandbox, act, credentials)


for _command in (*STATE_COMMANDS, connections_command, allow_command):
    world_group.add_command(_command)


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    """As `docker run` reads them: NAME alone stands for this process's variable, and for none if that is unset."""
    found = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not name:
            raise click.BadParameter(f"{one!r} is not NAME=VALUE or NAME", param_hint="--env")
        if sign or name in os.environ:
            found[name] = value if sign else os.environ[name]
    return found


def _in_world(
    home: Home,
    name: str,
    sandbox: str | None,
    act: Callable[[World], Awaitable[int]],
    credentials: tuple[str, ...],
) -> None:
    """Open a world, act, store it, and end with the exit status that `act` returns."""
    from ramify.worlds.world import World

    keys = read_credentials(credentials)

    async def whole() -> int:
        backend = sandbox or _backend_of(home, name)
        async with World.open(name, credentials=keys, home=home.folder, sandbox=backend) as world:
            return await until_told_to_end(act(world))

    status = run_async(whole())
    if status:
        raise SystemExit(status)


async def _streamed(world: World, command: str | list[str], *, stdin: bool, **options: Any) -> int:
    async with world.start(command, stdin=stdin, **options) as process:
        status = await pass_through(process, stdin=stdin)
        if process.limit:
            say(f"the limit {process.limit.value!r} ended the command", err=True)
        return status


async def _in_terminal(world: World, command: str | list[str] | None, **options: Any) -> int:
    rows, columns = terminal_size()
    async with world.pty(command, rows=rows, columns=columns, **options) as terminal:
        return await interact(terminal)


async def _within(timeout: float | None, running: Awaitable[int]) -> int:
    import asyncio

    try:
        async with asyncio.timeout(timeout):
            return await running
    except TimeoutError:
        say(f"the limit 'timeout' ended the command after {timeout:g} s", err=True)
        return TIMED_OUT


def _shown(result: RunResult) -> int:
    """Show the output of a command of the shell."""
    sys.stdout.buffer.write(result.stdout_bytes)
    sys.stdout.buffer.flush()
    sys.stderr.buffer.write(result.stderr_bytes)
    sys.stderr.buffer.flush()
    if result.limit:
        say(f"the limit {result.limit.value!r} ended the command", err=True)
    return result.exit_code


def _backend_of(home: Home, name: str) -> str | None:
    """The backend on which the world was made."""
    from ramify import paths
    from ramify.worlds.references import Kind, References

    return References(paths.references(home.folder)).get(Kind.WORLD, name).backend or None
