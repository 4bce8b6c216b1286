"""`ramify gc` and `ramify fsck`: delete snapshots that no run needs, check and repair the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ramify import paths
from ramify.cli.console import pass_home, run_async, say, say_json
from ramify.inspect.home import Home
from ramify.inspect.text import byte_count, count
from ramify.runtime.store.run_locks import was_worked_on_here

if TYPE_CHECKING:
    from ramify.fork_engine.fsck.check import Problem
    from ramify.fork_engine.fsck.repair import FsckReport
    from ramify.fork_engine.types import SnapshotId
    from ramify.home_collection import DiskPolicy
    from ramify.runtime.store.reader import Reader
    from ramify.runtime.worlds.garbage_collection import Collected


def _size(context: click.Context | None, parameter: click.Parameter | None, value: str | None) -> int | None:
    if value is None:
        return None
    from ramify.home_collection import byte_size

    try:
        return byte_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@click.command("gc")
@click.option(
    "--budget",
    metavar="SIZE",
    callback=_size,
    help="Also delete states that can be computed again, cheapest first, until this size: 500M, 2G.",
)
@click.option("--auto", is_flag=True, help="Only if it is due, as after each `ramify run`; see above.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--remote", is_flag=True, help="In this home's bucket instead: delete what no home has named for a day."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_home
def gc_command(home: Home, budget: int | None, auto: bool, dry_run: bool, remote: bool, as_json: bool) -> None:
    """Delete the snapshots that no run needs.

    With --budget, also states that can be computed again: those that commands left for reuse, and those between the
    first and the last state of a finished run. States that take the fewest seconds per byte to compute again go
    first. A deleted state is computed again when it is needed. Runs that can be resumed, and LangGraph threads, keep
    all states.

    It is safe while runs go on, and if it is killed: call it again. Snapshots of the last 5 minutes are left for a
    later call.

    `ramify run` and `resume` do the same by themselves at their end, at most once an hour, if less than 10 GB (or a
    tenth of a smaller disk) is free, until that much is free; and if $RAMIFY_DISK_BUDGET is set (500M, 2G), until
    the snapshots take no more than that. RAMIFY_DISK_BUDGET=off turns this off.

    \b
    Example: ramify gc --budget 2G --dry-run
    """
    if remote:
        from ramify.cli.commands.remote import collect_remote

        if budget is not None:
            raise click.UsageError("--budget is about this machine's disk: leave out --remote")
        collect_remote(home, dry_run, as_json)
        return
    if not home.has_runs and not _has_only_worlds(home):
        home.require_usable()
        say_json(_collected_object(None)) if as_json else say(f"no runs yet in {home.location}")
        return
    if auto and (budget is not None or dry_run):
        raise click.UsageError("--auto takes its budget from $RAMIFY_DISK_BUDGET: leave out --budget and --dry-run")
    from ramify.home_collection import collect_home

    done = run_async(_collect_if_due(home) if auto else collect_home(home, budget, dry_run))
    if done is None and not as_json:
        say("not due")
        return
    if as_json:
        say_json(_collected_object(done))
    else:
        assert done is not None
        _show_collected(done, dry_run)


def collect_at_the_end(home: Home) -> None:
    """Collect after a command that made snapshots, if it is due. Says so only if it deleted something."""
    done = run_async(_collect_if_due(home))
    if done is not None and done.snapshots:
        say(
            f"the disk is nearly full, or above $RAMIFY_DISK_BUDGET: deleted {count(done.snapshots, 'snapshot')}, "
            f"{byte_count(done.bytes)}. RAMIFY_DISK_BUDGET=off turns this off",
            err=True,
        )


def disk_policy() -> DiskPolicy | None:
    """What $RAMIFY_DISK_BUDGET says of collections after runs. Raises `RunError`."""
    from ramify.home_collection import BUDGET_VARIABLE, automatic_policy
    from ramify.runtime.errors import RunError

    try:
        return automatic_policy()
    except ValueError as error:
        raise RunError(f"${BUDGET_VARIABLE}: {error}, or off") from None


async def _collect_if_due(home: Home) -> Collected | None:
    from ramify.home_collection import collect_home, collect_if_due

    policy = disk_policy()
    if policy is None or not home.has_runs:
        return None
    return await collect_if_due(
        home.folder, policy, lambda budget, dry_run: collect_home(home, budget, dry_run, wait=False), clock=time.time
    )


def _has_only_worlds(home: Home) -> bool:
    """Whether the home has snapshots but never had a run. The locks of runs stay: with one of them and without a
    database here, the runs are in another database, and a collection would delete their snapshots."""
    locks = paths.locks(home.folder)
    return paths.snapshots(home.folder).is_dir() and not any(locks.glob("*.lock"))


def _show_collected(done: Collected, dry_run: bool) -> None:
    would = "would delete" if dry_run else "deleted"
    say(f"{would} {count(done.snapshots, 'snapshot')}, {byte_count(done.bytes)}")
    for one in done.evicted:
        say(f"  {one.id[:12]}: {byte_count(one.frees)}, {one.seconds:.1f} s to compute again", style="dim")
    say(f"{count(done.kept, 'snapshot')} kept, {byte_count(done.held)}")
    if done.young:
        say(f"{count(done.young, 'snapshot')} of the last 5 minutes: left for a later `ramify gc`")
    if not done.within_budget and done.budget is not None:
        say(
            f"the rest cannot be computed again: they take more than the budget of {byte_count(done.budget)}",
            style="yellow",
        )


def _collected_object(done: Collected | None) -> dict[str, object]:
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


@click.command("fsck")
@click.option(
    "--repair", is_flag=True, help="Repair what other copies allow, and move the rest aside. Stop all runs first."
)
@click.option(
    "--remote",
    is_flag=True,
    help="Check this home's bucket instead. With --repair, the next push replaces what is damaged.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
@pass_home
def fsck_command(home: Home, context: click.Context, repair: bool, remote: bool, as_json: bool) -> None:
    """Check all snapshots against their digests: bytes, modes, times, attributes, links. Report snapshots that runs
    miss.

    With --repair, what cannot be repaired is moved to `damaged/` in the store, and the snapshots that are lost are
    named.

    The exit status is 0 if all is well or was repaired, or only leftovers of a crash were found; otherwise the sum of
    1 (something is damaged) and 2 (something is missing).

    \b
    Example: ramify fsck --repair
    """
    if remote:
        from ramify.cli.commands.remote import check_remote

        context.exit(check_remote(home, repair, as_json))
    if not paths.snapshots(home.folder).is_dir():
        home.require_usable()
        if as_json:
            say_json({"ok": True, "checked": {}, "problems": [], "mended": [], "lost": [], "aside": []})
        else:
            say(f"no snapshots yet in {home.folder}")
        return
    expected = _expected(home)
    report = home.snapshots().fsck(repair=repair, expected=expected)
    if as_json:
        say_json(_report_object(report))
    else:
        _show_report(home, report, repair)
    context.exit(report.status)


def _expected(home: Home) -> set[SnapshotId]:
    """The snapshots that rows name, without those that garbage collection deleted.

    If several homes may share the database, only runs that were worked on from this home: snapshots of the others are
    in their own homes.
    """
    from ramify.images.catalogue import Catalogue
    from ramify.runtime.worlds.garbage_collection import EvictionMarks
    from ramify.worlds.references import References

    worlds = References(paths.references(home.folder)).snapshots()
    worlds |= Catalogue(paths.images(home.folder)).snapshots()
    if not home.has_runs:
        return worlds
    own = home.database == paths.database(home.folder, home.folder / "ramify.db")
    named = home.read(lambda store: store.live_snapshots() if own else _of_this_home(store, home))
    return (named - EvictionMarks(paths.evicted(home.folder)).all()) | worlds


async def _of_this_home(store: Reader, home: Home) -> set[SnapshotId]:
    every = [run.id for run in await store.runs()]
    mine = [run for run in every if was_worked_on_here(paths.locks(home.folder), run)]
    if others := len(every) - len(mine):
        say(f"{count(others, 'run')} never worked on from {home.folder}: their snapshots are not checked", err=True)
    return await store.live_snapshots(mine)


def _show_report(home: Home, report: FsckReport, repair: bool) -> None:
    mended = set(report.mended)
    for problem in report.problems:
        say(f"{problem}{': repaired' if problem in mended else ''}", style="dim" if problem in mended else "")
    for name in report.aside:
        say(f"moved aside: {paths.snapshots(home.folder) / 'damaged' / name}")
    for id in report.lost:
        say(f"snapshot {id}: {'lost' if repair else 'cannot be restored completely'}", style="red")
    kinds = ", ".join(f"{number} {part.value}" for part, number in report.checked.items())
    say(f"checked {kinds}: {_verdict(report, repair)}")


def _verdict(report: FsckReport, repair: bool) -> str:
    if not report.problems:
        return "no problems"
    found = count(len(report.problems), "problem")
    return (
        f"{found}, {len(report.mended)} repaired"
        if repair
        else f"{found}; `ramify fsck --repair` repairs what it can"
    )


def _report_object(report: FsckReport) -> dict[str, object]:
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
