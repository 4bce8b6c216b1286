"""`ramify fork` and `ramify merge`: runs that go on from the middle of others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify.cli.completion import state_names
from ramify.cli.console import pass_home, run_async, say, say_json
from ramify.inspect.home import Home, find_state
from ramify.inspect.text import count
from ramify.runtime.errors import RunError

if TYPE_CHECKING:
    from ramify.runtime.events import Event
    from ramify.runtime.records import RunRecord
    from ramify.session import Runtime

_FOR_REAL = click.option(
    "--for-real", is_flag=True, help="Its irreversible steps are done; without it they are refused as on a branch."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="One object: the new run.")


@click.command("fork")
@click.argument("state", shell_complete=state_names)
@click.option(
    "--files",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder whose files take the place of the state's: what `ramify checkout` wrote, changed by you.",
)
@_FOR_REAL
@_JSON
@pass_home
def fork_command(home: Home, state: str, files: Path | None, for_real: bool, as_json: bool) -> None:
    """Make a run that stands at STATE, a checkpoint of another. `ramify resume` goes on with it from there: nothing
    that was done up to STATE is done again.

    \b
    Example: ramify checkout @~2 what-if && $EDITOR what-if/main.py
             ramify fork @~2 --files what-if && ramify resume @
    """

    async def work(runtime: Runtime) -> RunRecord:
        return await runtime.fork(await _checkpoint(runtime, state), files=files, for_real=for_real)

    _make(home, work, as_json)


@click.command("merge")
@click.argument("ours", shell_complete=state_names)
@click.argument("theirs", shell_complete=state_names)
@click.option(
    "--base", metavar="STATE", help="What both changed.  [default: the latest state that both descend from]"
)
@click.option(
    "--strategy",
    type=click.Choice(["fail", "ours", "theirs", "union"]),
    default="fail",
    show_default=True,
    help="What becomes of what both changed, where a merge by lines does not settle it.",
)
@_FOR_REAL
@_JSON
@pass_home
def merge_command(
    home: Home, ours: str, theirs: str, base: str | None, strategy: str, for_real: bool, as_json: bool
) -> None:
    """Make a run that stands at OURS with what THEIRS changed merged in. `ramify resume` goes on with it,
    `ramify checkout` writes its files out. Both may be states of one run, or of runs forked from one.

    \b
    Example: ramify merge @:o3.0.0 @:o3.0.1
    """
    from ramify.fork_engine.types import MergeStrategy

    async def work(runtime: Runtime) -> RunRecord:
        mine, other = await _checkpoint(runtime, ours), await _checkpoint(runtime, theirs)
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
    say(f"`ramify resume {run.id}` goes on with it, `ramify log {run.id}` shows where it stands", err=True)


def _tell(event: Event) -> None:
    from ramify.runtime.events import Noticed

    if isinstance(event, Noticed):
        say(event.what, err=True)


async def _checkpoint(runtime: Runtime, text: str) -> str:
    place = await find_state(runtime.store, text)
    if place.checkpoint is None:
        raise RunError(f"{text} names no checkpoint: `ramify log` lists them")
    return place.checkpoint.id


@click.command("checkout")
@click.argument("state", shell_complete=state_names)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Write into a folder that is not empty; what differs is overwritten.")
@pass_home
def checkout_command(home: Home, state: str, folder: Path, force: bool) -> None:
    """Write the files of a STATE into DIR, which is missing or empty.

    With --force into any folder: what the state does not hold is left alone there.

    \b
    Example: ramify checkout @~2 what-it-was
    """
    place = home.find(state)
    snapshots = home.snapshots()
    changes = snapshots.checkout(snapshots.get(place.snapshot), folder, force=force)
    say(f"{count(len(changes), 'path')} written to {folder}", err=True)
