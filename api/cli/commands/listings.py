"""`ramify ls`, `ramify log`, `ramify tree`: lists of the runs, of a run's checkpoints, and of its branches."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import click

from ramify.cli.branch_tree import BranchTree, TreeLine
from ramify.cli.completion import run_names, state_names
from ramify.cli.console import headed, pass_home, say, say_json, say_pages, styled
from ramify.compiler.plan import OpKind
from ramify.inspect.facts import run_table
from ramify.inspect.home import Home, find_state_with_history, require_run
from ramify.inspect.text import age, fitted, printable
from ramify.runtime.errors import RunNotFound
from ramify.runtime.journal.refs import Place, parse
from ramify.runtime.records import CheckpointRecord, LLMRecord, OpRecord, RunId, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.inspect.checkpoint_graph import GraphRow
    from ramify.inspect.history import History
    from ramify.runtime.records import CheckpointRecord, Lease
    from ramify.runtime.store import Tally
    from ramify.runtime.store.reader import Reader


@click.command("ls")
@click.option(
    "-n", "--limit", type=click.IntRange(0, sys.maxsize), default=20, show_default=True, help="How many runs; 0: all."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@pass_home
def ls_command(home: Home, limit: int, as_json: bool) -> None:
    """List the runs, newest first.

    "interrupted": the run's process ended before the run did; `ramify resume` continues it. "in doubt": it is unknown
    whether an irreversible effect happened; see `ramify effects` and `ramify approve`.

    \b
    Example: ramify ls -n 5
    """
    if home.has_runs:
        runs, tallies, leases = home.read(lambda store: _read_runs(store, limit, home.clock()), whole=False)
    else:
        home.require_usable()
        runs, tallies, leases = [], {}, {}
    statuses = {run.id: home.status(run, leases) for run in runs}
    owners = {run: lease for run, lease in leases.items() if statuses[run] == RunStatus.RUNNING and lease.owner}
    if as_json:
        say_json([_run_object(run, tallies[run.id], statuses[run.id], owners.get(run.id)) for run in runs])
    elif not runs:
        say(f"no runs yet in {home.location}: start one with `ramify run FILE.py:NAME`", err=True)
    else:
        say_pages(headed(run_table(runs, tallies, statuses, home.clock(), owners)))
        if len(runs) == limit:
            say(f"the newest {limit} runs; `ramify ls -n 0` lists all", style="dim", err=True)


async def _read_runs(
    store: Reader, limit: int, now: float
) -> tuple[list[RunRecord], Mapping[RunId, Tally], Mapping[RunId, Lease]]:
    runs = await store.runs(limit or None)
    going = [run.id for run in runs if run.status is RunStatus.RUNNING]
    return runs, await store.tallies([run.id for run in runs]), await store.leases(going, now)


def _run_object(run: RunRecord, tally: Tally, status: str, owner: Lease | None) -> dict[str, object]:
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
        "owner": None
        if owner is None
        else {
            "host": owner.host,
            "pid": owner.pid,
            "since": owner.taken_at,
            "lease_age_s": round(owner.age_s, 3),
            "lease_lasts_s": owner.lasts_s,
        },
    }


_LONGEST = 72
_LOOKS = {"merged": "green", "released": "bright_black", "open": "cyan"}


@click.command("log")
@click.argument("state", metavar="[RUN|STATE]", default="@", shell_complete=state_names)
@click.option("-n", "--max-count", type=click.IntRange(0, sys.maxsize), metavar="N", help="At most N checkpoints.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, newest first.")
@pass_home
def log_command(home: Home, state: str, max_count: int | None, as_json: bool) -> None:
    """List the checkpoints of a RUN (the newest), newest first, beside the graph of its branches. For a STATE: its
    ancestors.

    The name of a branch is at its last checkpoint. `ramify show ID` shows a checkpoint, `ramify diff A B` compares
    two, `ramify fork ID` starts a new run from one.

    \b
    Example: ramify log -n 20
    """
    from ramify.inspect.checkpoint_graph import ancestry, rows

    place, history = home.read(lambda store: _read_history(store, state), whole=False)
    chosen = history.checkpoints
    if not parse(state).is_whole_run and place.checkpoint is not None:
        chosen = tuple(ancestry(chosen, place.checkpoint))
    if as_json:
        newest_first = sorted(chosen, key=lambda one: one.seq, reverse=True)
        say_json([_checkpoint_object(history, one) for one in islice(newest_first, max_count)])
        return
    drawn = rows(chosen)
    say_pages(_log_lines(history, chosen, drawn, max_count, home.clock()))


async def _read_history(store: Reader, text: str) -> tuple[Place, History]:
    place, history = await find_state_with_history(store, text)
    if history is None:
        raise RunNotFound(
            f"{text} is a snapshot that belongs to no run: name a run or a checkpoint. `ramify ls` lists runs"
        )
    return place, history


def _log_lines(
    history: History, chosen: tuple[CheckpointRecord, ...], drawn: Iterator[GraphRow], most: int | None, now: float
) -> Iterator[str]:
    tips = {one.branch: one.id for one in sorted(chosen, key=lambda one: one.seq)}
    count = 0
    for row in drawn:
        if most is not None and count >= most:
            return
        if row.checkpoint is None:
            yield click.style(row.lines, dim=True)
            continue
        count += 1
        yield _log_line(history, row.lines, row.checkpoint, now, tip=tips[row.checkpoint.branch] == row.checkpoint.id)


def _log_line(history: History, lines: str, one: CheckpointRecord, now: float, *, tip: bool) -> str:
    parts = [lines, click.style(one.id[:10], fg="yellow")]
    if tip:
        end = history.branches[one.branch].end.value
        said = one.branch if end == "open" else f"{one.branch} {end}"
        parts.append(click.style(f"({said})", fg=_LOOKS[end]))
    parts.append(fitted(what(history, one), _LONGEST))
    parts.append(click.style(age(now - one.created_at), dim=True))
    return " ".join(parts)


def what(history: History, one: CheckpointRecord) -> str:
    """What a checkpoint was taken after, in a line."""
    made = history.made_by(one)
    if made is None or not made.summary:
        return printable(one.label)
    name = one.label or made.name
    begins = re.match(rf"{re.escape(name)}(?!\w)", made.summary)  # only at the beginning and as a whole word
    said_already = made.kind is OpKind.MERGE or begins is not None
    return printable(made.summary if said_already else f"{name}: {made.summary}")


def _checkpoint_object(history: History, one: CheckpointRecord) -> dict[str, object]:
    made = history.made_by(one)
    return {
        "id": one.id,
        "run": one.run_id,
        "seq": one.seq,
        "branch": one.branch,
        "branch_end": history.branches[one.branch].end.value,
        "snapshot": one.snapshot_id,
        "parents": list(one.parents),
        "label": one.label,
        "kind": None if made is None else made.kind.value,
        "summary": "" if made is None else made.summary,
        "reused_from": None if made is None else made.reused_from,
        "created_at": one.created_at,
    }


@click.command("tree")
@click.argument("run", default="@", shell_complete=run_names)
@click.option("--fold", is_flag=True, help="Only count released branches.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON list of branches with their operations and checkpoints."
)
@pass_home
def tree_command(home: Home, run: str, fold: bool, as_json: bool) -> None:
    """Show the branches of a RUN (the newest) as a tree: steps and their results, forks and merges.

    ↺ marks a result that was reused from another branch, ✓ a merged branch, ✗ a failed attempt.

    \b
    Example: ramify tree 3f2a --fold
    """
    record, ops, llm, checkpoints = home.read(lambda store: _read_branches(store, run), whole=False)
    if as_json:
        say_json(_branch_objects(ops, llm, checkpoints))
        return
    say_pages(_drawn(f"{record.name} {record.id} {home.status(record)}", grown(ops, llm).lines(fold=fold)))


def _drawn(title: str, lines: Iterable[TreeLine]) -> Iterator[str]:
    yield click.style(title, bold=True)
    for line in lines:
        yield click.style(line.prefix, dim=True) + styled(line.text, line.look.value)


async def _read_branches(
    store: Reader, text: str
) -> tuple[RunRecord, list[OpRecord], list[LLMRecord], list[CheckpointRecord]]:
    run = await require_run(store, text)
    return run, await store.ops(run.id), await store.llm(run.id), await store.checkpoints(run.id)


def grown(ops: list[OpRecord], llm: list[LLMRecord]) -> BranchTree:
    """The tree of all these rows, in the order of their commits."""
    tree = BranchTree()
    rows: list[OpRecord | LLMRecord] = [*ops, *llm]
    for row in sorted(rows, key=lambda row: row.seq):
        if isinstance(row, LLMRecord):
            tree.add_llm(row)
        else:
            tree.add(row)
    return tree


def _branch_objects(
    ops: list[OpRecord], llm: list[LLMRecord], checkpoints: list[CheckpointRecord]
) -> list[dict[str, object]]:
    paths = dict.fromkeys([*(one.branch for one in checkpoints), *(op.branch for op in ops)])
    merged = {op.attrs.get("theirs_branch") for op in ops}
    return [
        {
            "branch": path,
            "merged": path in merged,
            "operations": [
                {
                    "seq": op.seq,
                    "kind": op.kind,
                    "plan_op": op.op_id,
                    "step": op.step,
                    "status": op.status,
                    "summary": op.summary,
                    "reused_from": op.reused_from,
                    "snapshot": op.snapshot_out,
                    "took_s": op.ended_at - op.started_at,
                }
                for op in ops
                if op.branch == path
            ],
            "llm_calls": sum(call.branch == path for call in llm),
            "checkpoints": [
                {"id": one.id, "seq": one.seq, "snapshot": one.snapshot_id, "label": one.label}
                for one in checkpoints
                if one.branch == path
            ],
        }
        for path in paths
    ]
