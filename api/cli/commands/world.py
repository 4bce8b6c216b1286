"""`ramify world`: named worlds from the command line. Each command opens a world, acts, and stores its new state."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ramify.cli.console import pass_home, run_async, say, say_all, say_json
from ramify.inspect.home import Home
from ramify.inspect.text import age, table

if TYPE_CHECKING:
    from ramify.fork_engine.types import Change
    from ramify.worlds.home import WorldHome

T = TypeVar("T")

_LETTERS = {"added": "A", "removed": "D", "modified": "M", "type": "T", "mode": "P"}


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
        "--sandbox", type=click.Choice(["namespaces", "docker", "copy"]), help="The backend (default: namespaces)."
    )(command)


@world_group.command("new")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", help="The world's name (default: a new one).")
@click.option("--from", "state", metavar="STATE", help="Start from a tag, a world or a snapshot instead of a folder.")
@click.option(
    "--image",
    metavar="IMAGE",
    help="An image (python:3.12, oci:FOLDER, docker:NAME), or a root file system: a folder or a tar.",
)
@click.option("--network", is_flag=True, help="Use this machine's network.")
@_sandbox_option
@pass_home
def new_command(
    home: Home,
    folder: Path | None,
    name: str | None,
    state: str | None,
    image: str | None,
    network: bool,
    sandbox: str | None,
) -> None:
    """Make a world from FOLDER, from a state, or empty, and print its name. The folder is never changed."""
    from ramify.worlds.world import World

    if folder is not None and state is not None:
        raise click.UsageError("name a folder or --from STATE, not both")
    called = name or f"world-{secrets.token_hex(3)}"

    async def make() -> None:
        opening = World.create(
            folder, snapshot=state, name=called, image=image, network=network, home=home.folder, sandbox=sandbox
        )
        async with opening:
            pass

    run_async(make())
    click.echo(called)


@world_group.command("ls")
@click.option("--tags", is_flag=True, help="The tags of snapshots instead.")
@click.option("--json", "as_json", is_flag=True, help="A list.")
@pass_home
def ls_command(home: Home, tags: bool, as_json: bool) -> None:
    """The worlds, newest first."""
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
@click.option("--shell", is_flag=True, help="Run in the world's persistent shell: `cd` and `export` last.")
@click.option("--cwd", metavar="DIR", help="Relative to the world's tree.")
@click.option("--env", "-e", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--timeout", type=float, metavar="SECONDS")
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input to the command.")
@_sandbox_option
@pass_home
def exec_command(
    home: Home,
    name: str,
    command: tuple[str, ...],
    shell: bool,
    cwd: str | None,
    env: tuple[str, ...],
    timeout: float | None,
    interactive: bool,
    sandbox: str | None,
) -> None:
    """Run COMMAND in the world NAME, and store what it changed. Options stand before NAME. One word is run by bash,
    several as they are. The exit status is the command's own.

    \b
    Example: ramify world exec --timeout 60 one -- pytest -q
    """
    from ramify.worlds.world import World

    given = [one.partition("=") for one in env]
    if bad := [name for name, sign, _ in given if not sign or not name]:
        raise click.BadParameter(f"{bad[0]!r} is not NAME=VALUE", param_hint="--env")
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise click.UsageError("name a command to run")
    line = words[0] if len(words) == 1 else list(words)
    stdin = sys.stdin.buffer.read() if interactive else None

    async def act() -> int:
        async with World.open(name, home=home.folder, sandbox=sandbox or _backend_of(home, name)) as world:
            options: dict[str, Any] = {"stdin": stdin, "env": {n: v for n, _, v in given}, "timeout": timeout}
            if shell:
                result = await world.run(line, cwd=cwd, **options)
            else:
                result = await world.exec(line, cwd=cwd, **options)
            sys.stdout.buffer.write(result.stdout_bytes)
            sys.stdout.buffer.flush()
            sys.stderr.buffer.write(result.stderr_bytes)
            sys.stderr.buffer.flush()
            if result.limit:
                say(f"the limit {result.limit.value!r} ended the command", err=True)
            return result.exit_code

    status = run_async(act())
    if status:
        raise SystemExit(status)


@world_group.command("fork")
@click.argument("name")
@click.option("--name", "names", multiple=True, help="The fork's name; may be repeated for several forks.")
@pass_home
def fork_command(home: Home, name: str, names: tuple[str, ...]) -> None:
    """Make another world of a world's stored state, and print its name. It costs one small file."""

    async def act(opened: WorldHome) -> list[str]:
        called = list(names) or [f"{name}-{secrets.token_hex(2)}"]
        return [opened.copy(name, each).name for each in called]

    for made in _in_home(home, act):
        click.echo(made)


@world_group.command("snapshot")
@click.argument("name")
@click.argument("tag", required=False)
@pass_home
def snapshot_command(home: Home, name: str, tag: str | None) -> None:
    """Print the id of a world's stored state, and give it the name TAG."""

    async def act(opened: WorldHome) -> str:
        state = opened.saved(name)
        if tag is not None:
            opened.tag(tag, state, source=name)
        return state.id

    click.echo(_in_home(home, act))


@world_group.command("restore")
@click.argument("name")
@click.argument("state")
@pass_home
def restore_command(home: Home, name: str, state: str) -> None:
    """Take a world back to a state: a tag, another world, or a snapshot's id."""

    async def act(opened: WorldHome) -> None:
        from ramify.worlds.references import Kind

        with opened.references.held(name):
            opened.moved(opened.references.get(Kind.WORLD, name), opened.resolve(state))

    _in_home(home, act)


@world_group.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--json", "as_json", is_flag=True, help="A list.")
@pass_home
def diff_command(home: Home, before: str, after: str, as_json: bool) -> None:
    """The paths that differ between two states: worlds, tags or snapshots."""

    async def act(opened: WorldHome) -> list[Change]:
        return opened.store.changes(opened.resolve(before), opened.resolve(after))

    found = _in_home(home, act)
    if as_json:
        say_json([{"path": one.path, "kind": one.kind.value} for one in found])
        return
    for one in found:
        click.echo(f"{_LETTERS[one.kind.value]} {one.path}")


@world_group.command("merge")
@click.argument("name")
@click.argument("other")
@click.option("--base", metavar="STATE", help="The state from which both come (default: their common ancestor).")
@click.option(
    "--strategy", type=click.Choice(["fail", "ours", "theirs", "union"]), default="fail", help="For conflicts."
)
@pass_home
def merge_command(home: Home, name: str, other: str, base: str | None, strategy: str) -> None:
    """Merge the changes of OTHER (a world, a tag or a snapshot) into the world NAME. A conflict changes nothing."""

    async def act(opened: WorldHome) -> str:
        from ramify.fork_engine.types import MergeStrategy

        return opened.merge(name, other, base=base, strategy=MergeStrategy(strategy)).id

    click.echo(_in_home(home, act))


@world_group.command("checkout")
@click.argument("state")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Write into a folder that is not empty.")
@pass_home
def checkout_command(home: Home, state: str, folder: Path, force: bool) -> None:
    """Write the files of a state (a world, a tag or a snapshot) into a folder."""

    async def act(opened: WorldHome) -> int:
        return len(opened.store.checkout(opened.resolve(state), folder, force=force))

    say(f"{_in_home(home, act)} paths written to {folder}", err=True)


@world_group.command("rm")
@click.argument("names", nargs=-1, required=True)
@click.option("--tag", "tags", is_flag=True, help="The names are tags.")
@pass_home
def rm_command(home: Home, names: tuple[str, ...], tags: bool) -> None:
    """Delete worlds or tags. `ramify gc` then deletes the snapshots that nothing else needs."""

    async def act(opened: WorldHome) -> None:
        from ramify.worlds.references import Kind

        for name in names:
            if tags:
                opened.references.delete(Kind.TAG, name)
                continue
            opened.references.get(Kind.WORLD, name)
            with opened.references.held(name):
                opened.references.delete(Kind.WORLD, name)

    _in_home(home, act)


def _in_home(home: Home, act: Callable[[WorldHome], Any]) -> Any:
    from ramify.worlds.home import WorldHome

    async def whole() -> Any:
        async with WorldHome(home.folder) as opened:
            return await act(opened)

    return run_async(whole())


def _backend_of(home: Home, name: str) -> str | None:
    """The backend on which the world was made."""
    from ramify import paths
    from ramify.worlds.references import Kind, References

    return References(paths.references(home.folder)).get(Kind.WORLD, name).backend or None
