"""`ramify tree` and `ramify checkout`: a run's branches, and one of its states as files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify.cli.branch_tree import BranchTree, Line
from ramify.cli.completion import run_names, state_names
from ramify.cli.console import App, need_run, pass_app, say, say_json, say_pages, styled
from ramify.inspect.text import count
from ramify.runtime.records import CheckpointRecord, LLMRecord, OpRecord, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.store.reader import Reader


@click.command("tree")
@click.argument("run", default="@", shell_complete=run_names)
@click.option("--fold", is_flag=True, help="Count released branches instead of drawing them.")
@click.option("--json", "as_json", is_flag=True, help="A list of branches with their operations and checkpoints.")
@pass_app
def tree_command(app: App, run: str, fold: bool, as_json: bool) -> None:
    """The branches of a RUN (the newest): steps and what came of them, forks, what was merged and reused.

    ↺ marks a result that was taken over from another branch, ✓ a branch that was merged, ✗ an attempt that failed.

    \b
    Example: ramify tree 3f2a --fold
    """
    record, ops, llm, checkpoints = app.look(lambda store: _read(store, run))
    if as_json:
        say_json(_objects(ops, llm, checkpoints))
        return
    say_pages(_drawn(f"{record.name} {record.id} {app.status(record)}", grown(ops, llm).lines(fold=fold)))


def _drawn(title: str, lines: Iterable[Line]) -> Iterator[str]:
    yield click.style(title, bold=True)
    for line in lines:
        yield click.style(line.prefix, dim=True) + styled(line.text, line.look.value)


async def _read(
    store: Reader, text: str
) -> tuple[RunRecord, list[OpRecord], list[LLMRecord], list[CheckpointRecord]]:
    run = await need_run(store, text)
    return run, await store.ops(run.id), await store.llm(run.id), await store.checkpoints(run.id)


def grown(ops: list[OpRecord], llm: list[LLMRecord]) -> BranchTree:
    """The tree of all these rows, in the order in which they were committed."""
    tree = BranchTree()
    rows: list[OpRecord | LLMRecord] = [*ops, *llm]
    for row in sorted(rows, key=lambda row: row.seq):
        if isinstance(row, LLMRecord):
            tree.add_llm(row)
        else:
            tree.add(row)
    return tree


def _objects(
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


@click.command("checkout")
@click.argument("state", shell_complete=state_names)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Write into a folder that is not empty; what differs is overwritten.")
@pass_app
def checkout_command(app: App, state: str, folder: Path, force: bool) -> None:
    """Write the files of a STATE into DIR, which is missing or empty.

    With --force into any folder: what the state does not hold is left alone there.

    \b
    Example: ramify checkout @~2 what-it-was
    """
    place = app.find(state)
    snapshots = app.snapshots()
    changes = snapshots.checkout(snapshots.get(place.snapshot), folder, force=force)
    say(f"{count(len(changes), 'path')} written to {folder}", err=True)
