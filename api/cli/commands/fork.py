"""`ramify fork`, `ramify merge`, `ramify checkout`: new runs from checkpoints of others, and the files of a state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify.cli.completion import state_names
from ramify.cli.console import ACTIVE_FILES, pass_home, run_async, say, say_json, say_withheld
from ramify.cli.path_options import NamedPath
from ramify.inspect.home import Home, find_state, require_checkpoint
from ramify.inspect.text import count

if TYPE_CHECKING:
    from ramify.runtime.events import Event
    from ramify.runtime.records import RunRecord
    from ramify.session import Runtime

_FOR_REAL = click.option(
    "--for-real",
    is_flag=True,
    help="Let its irreversible steps have their effects; by default they are refused, as on a branch.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the new run as one JSON object.")


@click.command("fork")
@click.argument("state", shell_complete=state_names)
@click.option(
    "--files",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder whose files replace the state's, such as an edited `ramify checkout`.",
)
@_FOR_REAL
@_JSON
@pass_home
def fork_command(home: Home, state: str, files: Path | None, for_real: bool, as_json: bool) -> None:
    """Create a run that starts at STATE, a checkpoint of another run.

    `ramify resume` continues it from there: nothing before STATE is run again.

    \b
    Example: ramify checkout @~2 what-if && $EDITOR what-if/main.py
             ramify fork @~2 --files what-if && ramify resume @
    """

    async def work(runtime: Runtime) -> RunRecord:
        return await runtime.fork(await require_checkpoint(runtime.store, state), files=files, for_real=for_real)

    _make(home, work, as_json)


@click.command("merge")
@click.argument("ours", shell_complete=state_names)
@click.argument("theirs", shell_complete=state_names)
@click.option("--base", metavar="STATE", help="The common ancestor.  [default: the latest one]")
@click.option(
    "--strategy",
    type=click.Choice(["fail", "ours", "theirs", "union"]),
    default="fail",
    show_default=True,
    help="How to resolve conflicts that a merge by lines does not resolve.",
)
@_FOR_REAL
@_JSON
@pass_home
def merge_command(
    home: Home, ours: str, theirs: str, base: str | None, strategy: str, for_real: bool, as_json: bool
) -> None:
    """Create a run that starts at OURS, with the changes of THEIRS merged in.

    `ramify resume` continues it, `ramify checkout` writes its files. Both may be states of one run, or of runs that
    were forked from one run.

    \b
    Example: ramify merge @:o3.0.0 @:o3.0.1
    """
    from ramify.fork_engine.types import MergeStrategy

    async def work(runtime: Runtime) -> RunRecord:
        mine, other = await require_checkpoint(runtime.store, ours), await require_checkpoint(runtime.store, theirs)
        common = None if base is None else (await find_state(runtime.store, base)).snapshot
        return await runtime.merge(mine, other, base=common, strategy=MergeStrategy(strategy), for_real=for_real)

    _make(home, work, as_json)


def _make(home: Home, work: Callable[[Runtime], Awaitable[RunRecord]], as_json: bool) -> None:
    from ramify.session import Runtime

    async def made() -> RunRecord:
        async with Runtime(home=home.folder, database=home.database, observer=_tell) as runtime:
            return await work(runtime)

    run = run_async(made())
    if as_json:
        say_json({"run": run.id, "name": run.name, "status": run.status.value, "workflow": run.workflow})
        return
    say(run.id)
    say(f"`ramify resume {run.id}` continues it, `ramify log {run.id}` shows where it starts", err=True)


def _tell(event: Event) -> None:
    from ramify.runtime.events import Noticed

    if isinstance(event, Noticed):
        say(event.what, err=True)


@click.command("checkout")
@click.argument("state", shell_complete=state_names)
@click.argument("folder", metavar="DIR", type=NamedPath(path_type=Path, file_okay=False))
@click.option(
    "--force", is_flag=True, help="Write into a folder that is not empty; files that differ are overwritten."
)
@click.option("--active-files", is_flag=True, help=ACTIVE_FILES)
@pass_home
def checkout_command(home: Home, state: str, folder: Path, force: bool, active_files: bool) -> None:
    """Write the files of a STATE into DIR, which is missing or empty.

    With --force into any folder: files there that the state does not have are left alone. Files that the run made or
    changed and that programs run by themselves, such as hooks of git, are left out and named.

    \b
    Example: ramify checkout @~2 what-it-was
    """
    place = home.find(state)
    snapshots = home.snapshots()
    written = snapshots.checkout(snapshots.get(place.snapshot), folder, force=force, active_files=active_files)
    say(f"{count(len(written), 'path')} written to {folder}", err=True)
    say_withheld(written.withheld)
