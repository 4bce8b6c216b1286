"""`ramify show`: one run with the times of its model calls, or one state with the files that it changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ramify.cli.app import App, find, find_run, pass_app, say, say_all, say_json
from ramify.cli.branches import shown
from ramify.cli.diff import change_lines, change_object
from ramify.cli.words import age, clipped, count, instant, seconds, table
from ramify.compiler.plan import OpKind
from ramify.runtime.records import LLMRecord, OpRecord, RunRecord, RunStatus
from ramify.runtime.refs import Place

if TYPE_CHECKING:
    from ramify.cli.slo import CallTimes
    from ramify.fork_engine.types import Change
    from ramify.runtime.store import Tally

_LONGEST = 200


@click.command("show", short_help="One run and its model calls, or one state.")
@click.argument("state", metavar="[RUN|STATE]", default="@")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@pass_app
def show_command(app: App, state: str, as_json: bool) -> None:
    """A RUN (the newest): its steps, its deadline, and for each model call its tags, how long it was queued, its
    first token, its end and whether it met its deadline. Or a STATE of one: its snapshot and what changed there.
    """
    read = app.run(_read_run(app, state))
    if read is None:
        _show_state(app, app.run(app.find(state)), as_json)
        return
    run, tally, ops, llm = read
    from ramify.cli.slo import call_times

    calls = [call_times(row) for row in llm]
    if as_json:
        say_json(_run_object(run, app.status(run), ops, calls))
        return
    for line in run_lines(run, app.status(run), tally, app.clock()):
        say(line)
    for title, lines in (("Operations", op_lines(ops)), ("Model calls", slo_lines(run, calls))):
        if len(lines) > 1:
            say()
            say(title, style="bold")
            say_all(lines)


async def _read_run(app: App, text: str) -> tuple[RunRecord, Tally, list[OpRecord], list[LLMRecord]] | None:
    async with app.store() as store:
        run = await find_run(store, text)
        if run is None:
            return None
        tally = (await store.tallies([run.id]))[run.id]
        return run, tally, await store.ops(run.id), await store.llm(run.id)


def run_lines(run: RunRecord, status: str, tally: Tally, now: float) -> list[str]:
    """What a run is, a line a fact."""
    facts = [
        ("run", f"{run.id}  {status}"),
        ("workflow", shown(run.workflow)),
        ("workspace", shown(run.workspace) or "none"),
        ("arguments", clipped(shown(run.args_json), _LONGEST)),
        ("sandbox", run.settings.sandbox),
        ("began", f"{instant(run.created_at)} ({age(now - run.created_at)})"),
        ("deadline", deadline_line(run)),
        ("steps", f"{tally.steps} done, {tally.reused} of them reused; {count(tally.failed, 'failed attempt')}"),
        ("worlds", f"{tally.forks} forked, {tally.merges} merged"),
        ("model", count(tally.llm_calls, "call")),
    ]
    if run.result_json is not None:
        facts.append(("result", clipped(shown(run.result_json), _LONGEST)))
    if run.error:
        facts.append(("error", clipped(shown(run.error), _LONGEST)))
    return [f"{name:<10} {value}" for name, value in facts]


def deadline_line(run: RunRecord) -> str:
    used = seconds(run.consumed_s)
    if run.deadline_s is None:
        return f"none, {used} used"
    return f"{seconds(run.deadline_s)}, {used} used: {_verdict(run)}"


def _verdict(run: RunRecord) -> str:
    if run.deadline_s is None:
        return "-"
    if run.consumed_s > run.deadline_s:
        return "missed"
    return "met" if run.status is RunStatus.DONE else "not over yet"


def op_lines(ops: Sequence[OpRecord]) -> list[str]:
    header = ("SEQ", "PLAN OP", "KIND", "BRANCH", "STEP", "TOOK", "SNAPSHOT", "WHAT CAME OF IT")
    rows = []
    for op in ops:
        took = "-" if op.kind in (OpKind.SEAL, OpKind.RELEASE) else seconds(op.ended_at - op.started_at)
        said = "" if op.kind is OpKind.SEAL else op.summary
        if op.reused_from:
            said = f"reused from {op.reused_from}: {op.summary}"
        if op.error:
            said = f"failed: {op.error.splitlines()[0]}"
        rows.append(
            (
                str(op.seq),
                op.op_id,
                op.kind.value,
                op.branch,
                shown(op.step or ""),
                took,
                (op.snapshot_out or "")[:12],
                clipped(shown(said), 60),
            )
        )
    return table(header, rows, right=("SEQ", "TOOK"))


def slo_lines(run: RunRecord, calls: Sequence[CallTimes]) -> list[str]:
    """A row a call and one for the whole workflow. Times are counted from the call's arrival at the gateway."""
    header = ("SEQ", "BRANCH", "TAGS", "QUEUED", "FIRST TOKEN", "END", "DEADLINE", "MET")
    rows = [
        (
            str(call.seq),
            call.branch,
            call.tags_line,
            seconds(call.queued_s),
            seconds(call.first_token_s),
            seconds(call.end_s),
            seconds(call.deadline_s),
            call.verdict,
        )
        for call in calls
    ]
    if rows:
        whole = ("all", "", count(len(calls), "call"), seconds(sum(call.queued_s or 0 for call in calls)), "-")
        rows.append((*whole, seconds(run.consumed_s), seconds(run.deadline_s), _verdict(run)))
    return table(header, rows, right=("SEQ", *header[3:7]))


def _run_object(run: RunRecord, status: str, ops: list[OpRecord], calls: list[CallTimes]) -> dict[str, object]:
    return {
        "id": run.id,
        "name": run.name,
        "workflow": run.workflow,
        "workspace": run.workspace,
        "status": status,
        "sandbox": run.settings.sandbox,
        "created_at": run.created_at,
        "deadline_s": run.deadline_s,
        "consumed_s": run.consumed_s,
        "deadline": _verdict(run),
        "result": None if run.result_json is None else json.loads(run.result_json),
        "error": run.error or None,
        "operations": [
            {
                "seq": op.seq,
                "key": op.key,
                "plan_op": op.op_id,
                "kind": op.kind.value,
                "branch": op.branch,
                "step": op.step,
                "status": op.status.value,
                "summary": op.summary,
                "reused_from": op.reused_from,
                "snapshot": op.snapshot_out,
                "took_s": op.ended_at - op.started_at,
                "error": op.error,
            }
            for op in ops
        ],
        "llm_calls": [call.as_object() for call in calls],
    }


def _show_state(app: App, place: Place, as_json: bool) -> None:
    snapshots = app.snapshots()
    snapshot = snapshots.get(place.snapshot)
    before = app.run(_before(app, place))
    changes: list[Change] = [] if before is None else snapshots.changes(snapshots.get(before.snapshot), snapshot)
    made = place.checkpoint
    if as_json:
        say_json(
            {
                "snapshot": snapshot.id,
                "content_key": snapshot.content_key,
                "layers": list(snapshot.layers),
                "process_tier": snapshot.tier.value,
                "run": made.run_id if made else None,
                "checkpoint": made.id if made else None,
                "branch": made.branch if made else None,
                "label": made.label if made else None,
                "parents": list(made.parents) if made else [],
                "changes": [change_object(change) for change in changes],
            }
        )
        return
    facts = [("snapshot", snapshot.id), ("layers", str(len(snapshot.layers))), ("processes", snapshot.tier.value)]
    if made is not None:
        facts = [
            ("checkpoint", made.id),
            ("run", made.run_id),
            ("branch", made.branch),
            ("label", shown(made.label)),
            ("made", instant(made.created_at)),
            ("parents", ", ".join(made.parents) or "none"),
            *facts,
        ]
    for name, value in facts:
        say(f"{name:<10} {value}")
    if before is not None:
        say()
        say(f"{count(len(changes), 'path')} changed since its parent", style="bold")
        for line in change_lines(changes):
            say(line)


async def _before(app: App, place: Place) -> Place | None:
    """The state of the first parent."""
    if place.checkpoint is None or not place.checkpoint.parents:
        return None
    async with app.store() as store:
        return await find(store, place.checkpoint.parents[0])
