"""`ramify gc`: delete the snapshots that nothing names and, for a budget, what is cheapest to compute again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from ramify import paths
from ramify.cli.console import App, pass_app, say, say_json
from ramify.inspect.text import count

if TYPE_CHECKING:
    from ramify.runtime.worlds.garbage_collection import Collected

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no size: write 500M, 2G, or a number of bytes", context, parameter)
    return int(float(found[1]) * _UNITS[found[2].lower()])


@click.command("gc")
@click.option(
    "--budget",
    metavar="SIZE",
    callback=_size,
    help="Let go of what can be computed again, the cheapest first, until the snapshots hold no more: 500M, 2G.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and delete nothing.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@pass_app
def gc_command(app: App, budget: int | None, dry_run: bool, as_json: bool) -> None:
    """Delete the snapshots that no run names.

    With --budget, also states that commands left behind for reuse, and those between the first and the last of a run
    that is done: what takes the fewest seconds to compute again for the bytes that it holds goes first. Such a state
    is computed again when it is asked for. A run that can go on, and a LangGraph thread, keep everything.

    Safe while runs go on, and when it is killed: call it again. What was made in the last 5 minutes is left
    for a later call.

    \b
    Example: ramify gc --budget 2G --dry-run
    """
    if not app.has_runs:
        app.need_place()
        say_json(_object(None)) if as_json else say(f"no runs yet in {app.place}")
        return
    done = app.run(_collect(app, budget, dry_run))
    if as_json:
        say_json(_object(done))
    else:
        _show(done, dry_run)


async def _collect(app: App, budget: int | None, dry_run: bool) -> Collected:
    from ramify.fork_engine.gc_pins import Pins
    from ramify.runtime.worlds.garbage_collection import EvictionMarks, collect

    pins, marks = Pins(paths.locks(app.home)), EvictionMarks(paths.evicted(app.home))
    async with app.store() as store:
        return await collect(store, app.snapshots(), pins, marks, budget=budget, dry_run=dry_run)


def _show(done: Collected, dry_run: bool) -> None:
    would = "would delete" if dry_run else "deleted"
    say(f"{would} {count(done.snapshots, 'snapshot')}, {_bytes(done.bytes)}")
    for one in done.evicted:
        say(f"  {one.id[:12]}: {_bytes(one.frees)}, {one.seconds:.1f} s to compute again", style="dim")
    say(f"{count(done.kept, 'snapshot')} kept, {_bytes(done.held)} in files")
    if done.young:
        say(f"{count(done.young, 'snapshot')} that may go, made in the last 5 minutes: left for a later `ramify gc`")
    if not done.within_budget and done.budget is not None:
        say(f"the rest cannot be computed again: the budget of {_bytes(done.budget)} is not met", style="yellow")


def _bytes(number: int) -> str:
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} B"


def _object(done: Collected | None) -> dict[str, object]:
    if done is None:
        return {"snapshots": 0, "bytes": 0, "kept": 0, "held": 0, "young": 0, "evicted": [], "within_budget": True}
    return {
        "snapshots": done.snapshots,
        "bytes": done.bytes,
        "kept": done.kept,
        "held": done.held,
        "young": done.young,
        "evicted": [{"snapshot": e.id, "frees": e.frees, "seconds": e.seconds} for e in done.evicted],
        "within_budget": done.within_budget,
    }
