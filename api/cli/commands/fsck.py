"""`ramify fsck`: whether the snapshots are what they were, and what can be done where they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ramify import paths
from ramify.cli.console import App, pass_app, say, say_json
from ramify.inspect.text import count
from ramify.runtime.store.run_locks import was_worked_on_here

if TYPE_CHECKING:
    from ramify.fork_engine.fsck.check import Problem
    from ramify.fork_engine.fsck.repair import FsckReport
    from ramify.fork_engine.types import SnapshotId
    from ramify.runtime.store.reader import Reader


@click.command("fsck")
@click.option("--repair", is_flag=True, help="Mend what other copies allow; move the rest aside. End all runs first.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@click.pass_context
@pass_app
def fsck_command(app: App, context: click.Context, repair: bool, as_json: bool) -> None:
    """Hold everything in the store of snapshots against the digest that names it: bytes, modes, times, attributes,
    links. Reads all of it, and misses what the runs name.

    What cannot be mended is moved to `damaged/` in the store, and the snapshots that are lost with it are named.

    The exit status is 0 where all is well or was mended, or only a crash's leftovers were found; else the sum of 1
    where something is damaged and 2 where something is missing.

    \b
    Example: ramify fsck --repair
    """
    if not paths.snapshots(app.home).is_dir():
        app.need_place()
        if as_json:
            say_json({"ok": True, "checked": {}, "problems": [], "mended": [], "lost": [], "aside": []})
        else:
            say(f"no snapshots yet in {app.home}")
        return
    expected = _expected(app)
    report = app.snapshots().fsck(repair=repair, expected=expected)
    if as_json:
        say_json(_object(report))
    else:
        _show(app, report, repair)
    context.exit(report.status)


def _expected(app: App) -> set[SnapshotId]:
    """What rows name, but for what a collection let go of. Where the database may be several homes', of the runs that
    were worked on from this one: the others' snapshots lie in theirs."""
    from ramify.runtime.worlds.garbage_collection import EvictionMarks

    if not app.has_runs:
        return set()
    own = app.database == paths.database(app.home, app.home / "ramify.db")
    named = app.look(lambda store: store.live_snapshots() if own else _of_this_home(store, app))
    return named - EvictionMarks(paths.evicted(app.home)).all()


async def _of_this_home(store: Reader, app: App) -> set[SnapshotId]:
    every = [run.id for run in await store.runs()]
    mine = [run for run in every if was_worked_on_here(paths.locks(app.home), run)]
    if others := len(every) - len(mine):
        say(f"{count(others, 'run')} never worked on from {app.home}: their snapshots are not looked for", err=True)
    return await store.live_snapshots(mine)


def _show(app: App, report: FsckReport, repair: bool) -> None:
    mended = set(report.mended)
    for problem in report.problems:
        say(f"{problem}{': mended' if problem in mended else ''}", style="dim" if problem in mended else "")
    for name in report.aside:
        say(f"moved aside: {paths.snapshots(app.home) / 'damaged' / name}")
    for id in report.lost:
        say(f"snapshot {id}: {'lost' if repair else 'cannot be restored whole'}", style="red")
    kinds = ", ".join(f"{number} {part.value}" for part, number in report.checked.items())
    say(f"checked {kinds}: {_verdict(report, repair)}")


def _verdict(report: FsckReport, repair: bool) -> str:
    if not report.problems:
        return "all as it was"
    found = count(len(report.problems), "problem")
    return f"{found}, {len(report.mended)} mended" if repair else f"{found}; `ramify fsck --repair` mends what it can"


def _object(report: FsckReport) -> dict[str, object]:
    return {
        "ok": report.status == 0,
        "checked": {part.value: number for part, number in report.checked.items()},
        "problems": [_problem(problem) for problem in report.problems],
        "mended": [_problem(problem) for problem in report.mended],
        "lost": list(report.lost),
        "aside": list(report.aside),
    }


def _problem(problem: Problem) -> dict[str, str]:
    return {
        "part": problem.part.value,
        "name": problem.name,
        "damage": problem.damage.value,
        "path": problem.path,
        "detail": problem.detail,
    }
