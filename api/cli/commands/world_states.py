"""The commands of `ramify world` that work on stored states: nothing runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramify.cli.console import ACTIVE_FILES, pass_home, run_async, say, say_json, say_paths, say_withheld
from ramify.cli.path_options import NamedPath
from ramify.inspect.home import Home
from ramify.inspect.text import quoted_path

if TYPE_CHECKING:
    from ramify.fork_engine.types import Change, Written
    from ramify.worlds.home import WorldHome

_LETTERS = {"added": "A", "removed": "D", "modified": "M", "type": "T", "mode": "P"}


def in_home(home: Home, act: Callable[[WorldHome], Any]) -> Any:
    """Act on the worlds of a home, and return what `act` returns."""
    from ramify.worlds.home import WorldHome

    async def whole() -> Any:
        async with WorldHome(home.folder) as opened:
            return await act(opened)

    return run_async(whole())


@click.command("fork")
@click.argument("name")
@click.option(
    "--name", "names", multiple=True, help="The fork's name. Repeat it for several forks.  [default: a new one]"
)
@pass_home
def fork_command(home: Home, name: str, names: tuple[str, ...]) -> None:
    """Make a copy of the world NAME, and print its name. Of several copies, all are made or none.

    The copy starts at the state that is stored. It costs one small file: files are shared until they are changed.

    \b
    Example: ramify world fork one --name two --name three
    """

    async def act(opened: WorldHome) -> list[str]:
        from ramify.worlds.references import Kind

        made: list[str] = []
        try:
            for each in names or (f"{name}-{secrets.token_hex(2)}",):
                made.append(opened.copy(name, each).name)
        except BaseException:
            for each in made:
                opened.references.delete(Kind.WORLD, each)
            raise
        return made

    for made in in_home(home, act):
        say(made)


@click.command("snapshot")
@click.argument("name")
@click.argument("tag", required=False)
@pass_home
def snapshot_command(home: Home, name: str, tag: str | None) -> None:
    """Print the id of a world's state, and tag it.

    The state is the one that is stored. `ramify gc` keeps a state that has a TAG.

    \b
    Example: ramify world snapshot one before
    """

    async def act(opened: WorldHome) -> str:
        state = opened.saved(name)
        if tag is not None:
            opened.tag(tag, state, source=name)
        return state.id

    say(in_home(home, act))


@click.command("restore")
@click.argument("name")
@click.argument("state")
@pass_home
def restore_command(home: Home, name: str, state: str) -> None:
    """Take the world NAME back to a STATE.

    STATE is a tag, another world, or the id of a snapshot.

    \b
    Example: ramify world restore one before
    """

    async def act(opened: WorldHome) -> None:
        from ramify.worlds.references import Kind

        with opened.references.held(name):
            reference, to = opened.references.get(Kind.WORLD, name), opened.resolve(state)
            opened.check_image(to, opened.saved(name), reference.image or None)
            opened.moved(reference, to)

    in_home(home, act)


@click.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@click.option("-z", "nul", is_flag=True, help="End letters and paths with a NUL, and do not quote paths.")
@pass_home
def diff_command(home: Home, before: str, after: str, as_json: bool, nul: bool) -> None:
    """List the paths that differ between two states.

    BEFORE and AFTER are worlds, tags or ids of snapshots. The letters are A (added), D (removed), M (contents), T
    (type) and P (permissions). Unusual paths are quoted, as by git. Over an image, changes of its own files follow;
    their paths begin with a slash.

    \b
    Example: ramify world diff before one
    """

    async def act(opened: WorldHome) -> list[Change]:
        return opened.store.world_changes(opened.resolve(before), opened.resolve(after))

    found = in_home(home, act)
    if as_json:
        say_json([{"path": one.path, "kind": one.kind.value} for one in found])
        return
    if nul:
        say_paths((part for one in found for part in (_LETTERS[one.kind.value], one.path)), nul=True)
        return
    for one in found:
        say(f"{_LETTERS[one.kind.value]} {quoted_path(one.path)}")


@click.command("merge")
@click.argument("name")
@click.argument("other")
@click.option(
    "--base", metavar="STATE", help="The state from which both come.  [default: their latest common ancestor]"
)
@click.option(
    "--strategy",
    type=click.Choice(["fail", "ours", "theirs", "union"]),
    default="fail",
    show_default=True,
    help="How to resolve conflicts that a merge by lines does not resolve.",
)
@pass_home
def merge_command(home: Home, name: str, other: str, base: str | None, strategy: str) -> None:
    """Merge the changes of OTHER into the world NAME.

    OTHER is a world, a tag or the id of a snapshot. The id of the merged state is printed. A conflict changes
    nothing.

    \b
    Example: ramify world merge one two
    """

    async def act(opened: WorldHome) -> str:
        from ramify.fork_engine.types import MergeStrategy

        return opened.merge(name, other, base=base, strategy=MergeStrategy(strategy)).id

    say(in_home(home, act))


@click.command("checkout")
@click.argument("state")
@click.argument("folder", type=NamedPath(path_type=Path))
@click.option(
    "--force", is_flag=True, help="Write into a folder that is not empty; files that differ are overwritten."
)
@click.option("--active-files", is_flag=True, help=ACTIVE_FILES)
@pass_home
def checkout_command(home: Home, state: str, folder: Path, force: bool, active_files: bool) -> None:
    """Write the files of a STATE into FOLDER.

    STATE is a world, a tag or the id of a snapshot. FOLDER is missing or empty, unless you pass --force. Files that
    the world made or changed and that programs run by themselves, such as hooks of git, are left out and named.

    \b
    Example: ramify world checkout one out
    """

    async def act(opened: WorldHome) -> Written:
        return opened.store.checkout(opened.resolve(state), folder, force=force, active_files=active_files)

    written: Written = in_home(home, act)
    say(f"{len(written)} paths written to {folder}", err=True)
    say_withheld(written.withheld)


@click.command("rm")
@click.argument("names", nargs=-1, required=True)
@click.option("--tag", "tags", is_flag=True, help="The names are tags.")
@pass_home
def rm_command(home: Home, names: tuple[str, ...], tags: bool) -> None:
    """Delete worlds, or tags with --tag. If one is missing or open, nothing is deleted.

    `ramify gc` then deletes the snapshots that nothing else needs.

    \b
    Example:
      ramify world rm two three
      ramify world rm --tag before
    """

    async def act(opened: WorldHome) -> None:
        (opened.delete_tags if tags else opened.delete_worlds)(*names)

    in_home(home, act)


STATE_COMMANDS = (
    fork_command,
    snapshot_command,
    restore_command,
    diff_command,
    merge_command,
    checkout_command,
    rm_command,
)
