"""`ramify ls`: the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ramify.cli.branch_tree import shown
from ramify.cli.console import App, headed, pass_app, say, say_json, say_pages
from ramify.inspect.text import age, table
from ramify.runtime.records import RunId, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.store import Tally
    from ramify.runtime.store.reader import Reader


@click.command("ls")
@click.option("-n", "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many; 0: all.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@pass_app
def ls_command(app: App, limit: int, as_json: bool) -> None:
    """The runs, newest first.

    A run is "interrupted" where its process ended before it did: `ramify resume` goes on with it. It is "in doubt"
    where nobody knows whether an effect of it happened: `ramify effects` lists that, `ramify approve` settles it.

    \b
    Example: ramify ls -n 5
    """
    if app.has_runs:
        runs, tallies = app.look(lambda store: _read(store, limit))
    else:
        app.need_place()
        runs, tallies = [], {}
    if as_json:
        say_json([_object(run, tallies[run.id], app.status(run)) for run in runs])
    elif not runs:
        say(f"no runs yet in {app.place}: start one with `ramify run FILE.py:NAME`", err=True)
    else:
        say_pages(headed(listing(runs, tallies, {run.id: app.status(run) for run in runs}, app.clock())))
        if len(runs) == limit:
            say(f"the newest {limit}; `ramify ls -n 0` lists all", style="dim", err=True)


async def _read(store: Reader, limit: int) -> tuple[list[RunRecord], Mapping[RunId, Tally]]:
    runs = await store.runs(limit or None)
    return runs, await store.tallies([run.id for run in runs])


def listing(
    runs: Sequence[RunRecord], tallies: Mapping[RunId, Tally], statuses: Mapping[RunId, str], now: float
) -> list[str]:
    header = ("RUN", "NAME", "STATUS", "AGE", "STEPS", "FORKS", "REUSED", "MODEL CALLS")
    rows = []
    for run in runs:
        tally = tallies[run.id]
        counts = (tally.steps, tally.forks, tally.reused, tally.llm_calls)
        rows.append((run.id, shown(run.name), statuses[run.id], age(now - run.created_at), *map(str, counts)))
    return table(header, rows, right=header[3:])


def _object(run: RunRecord, tally: Tally, status: str) -> dict[str, object]:
    return {
        "id": run.id,
        "name": run.name,
        "workflow": run.workflow,
        "workspace": run.workspace,
        "status": status,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "deadline_s": run.deadline_s,
        "consumed_s": run.consumed_s,
        "steps": tally.steps,
        "reused": tally.reused,
        "failed": tally.failed,
        "forks": tally.forks,
        "merges": tally.merges,
        "llm_calls": tally.llm_calls,
        "error": run.error or None,
    }
