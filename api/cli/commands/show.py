"""`ramify show`: one run with the times of its model calls, or one state with the files that it changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ramify.cli.commands.decisions import effect_lines, effect_object
from ramify.cli.commands.diff import change_object
from ramify.cli.completion import state_names
from ramify.cli.console import CommandHome, headed, pass_home, say_json, say_pages
from ramify.compiler.plan import OpKind
from ramify.inspect.facts import (
    call_lines,
    change_lines,
    checkpoint_facts,
    deadline_line,
    deadline_verdict,
    outside_lines,
    snapshot_facts,
    variable_lines,
)
from ramify.inspect.history import result_of
from ramify.inspect.home import Home, find_run, find_state_with_history
from ramify.inspect.state import Channels, State, state_at
from ramify.inspect.text import LONGER, age, count, fitted, instant, printable, seconds, table
from ramify.inspect.values import json_line, value_line
from ramify.runtime.estimates.cost_model import Regret, regrets
from ramify.runtime.records import AGAIN, DOUBTFUL, EffectRecord, LLMRecord, OpRecord, OpStatus, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.fork_engine.types import Snapshot
    from ramify.inspect.model_calls import CallTimes
    from ramify.runtime.store import Tally
    from ramify.runtime.store.reader import Reader


_LONGEST = 200
_MOST_OUTSIDE = 20  # paths outside the workspace


@click.command("show")
@click.argument("state", metavar="[RUN|STATE]", default="@", shell_complete=state_names)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_home
def show_command(home: CommandHome, state: str, as_json: bool) -> None:
    """Show a RUN (the newest) or a STATE of one.

    A run: its steps, its deadline, and for each model call its tags, its time in the queue, to the first token and to
    the end, and whether it met its deadline. A state: its snapshot and its changes.

    \b
    Example: ramify show @~1
    """
    read = home.read(lambda store: _read_run(store, state), whole=as_json)
    if read is None:
        show_state(home, state, as_json)
        return
    run, tally, ops, llm, effects = read
    from ramify.inspect.model_calls import call_times

    calls = [call_times(row) for row in llm]
    if as_json:
        say_json(_run_object(run, home.status(run), ops, calls))
        return
    status, complete = home.status(run), home.typed.complete
    facts = [*run_lines(run, status, tally, home.clock()), *map(complete, effects_line(run, status, effects))]
    say_pages(_run_text(facts, op_lines(ops), slo_lines(run, calls)))


def _run_text(facts: Sequence[str], operations: Sequence[str], calls: Sequence[str]) -> Iterator[str]:
    yield from facts
    for title, lines in (("Operations", operations), ("Model calls", calls)):
        yield from section(title, lines if len(lines) > 1 else [])


async def _read_run(
    store: Reader, text: str
) -> tuple[RunRecord, Tally, list[OpRecord], list[LLMRecord], list[EffectRecord]] | None:
    run = await find_run(store, text)
    if run is None:
        return None
    tally = (await store.tallies([run.id]))[run.id]
    return run, tally, await store.ops(run.id), await store.llm(run.id), await store.effects(run.id)


def run_lines(run: RunRecord, status: str, tally: Tally, now: float) -> list[str]:
    """The facts of a run, one per line."""
    facts = [
        ("run", f"{run.id}  {status}"),
        ("workflow", printable(run.workflow)),
        ("workspace", printable(run.workspace) or "none"),
        ("arguments", json_line(run.args_json, _LONGEST)),
        ("sandbox", run.settings.sandbox),
        ("began", f"{instant(run.created_at)} ({age(now - run.created_at)})"),
        ("deadline", deadline_line(run)),
        ("steps", f"{tally.steps} done, {tally.reused} of them reused; {count(tally.failed, 'failed attempt')}"),
        ("worlds", f"{tally.forks} forked, {tally.merges} merged"),
        ("model", count(tally.llm_calls, "call")),
    ]
    if run.result_json is not None:
        facts.append(("result", value_line(json.loads(run.result_json), _LONGEST)))
    if run.error:
        facts.append(("error", fitted(run.error, _LONGEST)))
    return [f"{name:<10} {value}" for name, value in facts]


def effects_line(run: RunRecord, status: str, effects: Sequence[EffectRecord]) -> list[str]:
    """The irreversible effects. A step that was killed during its effect has no row in the journal yet."""
    if not effects:
        return []
    doubtful = [printable(one.step) for one in effects if one.status in DOUBTFUL and status != RunStatus.RUNNING]
    unknown = f", outcome unknown: {', '.join(doubtful)} (`ramify effects {run.id}`)" if doubtful else ""
    return [f"{'effects':<10} {len(effects)} begun{unknown}"]


def slo_lines(run: RunRecord, calls: Sequence[CallTimes]) -> list[str]:
    """A row per call and one for the whole workflow. Times are counted from the call's arrival at the gateway."""
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
        rows.append((*whole, seconds(run.consumed_s), seconds(run.deadline_s), deadline_verdict(run)))
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
        "deadline": deadline_verdict(run),
        "result": None if run.result_json is None else json.loads(run.result_json),
        "error": run.error or None,
        "operations": [op_object(run, op) for op in ops],
        "llm_calls": [call.as_object() for call in calls],
    }


def show_state(home: Home, text: str, as_json: bool) -> None:
    """Print a checkpoint with all that is known of it, or a bare snapshot with its contents."""
    place, history = home.read(lambda store: find_state_with_history(store, text), whole=as_json)
    snapshots = home.snapshots()
    state = None
    if history is not None and place.checkpoint is not None:
        state = state_at(history, snapshots, place.checkpoint, home.database)
    snapshot = snapshots.get(place.snapshot) if state is None else state.snapshot
    if as_json:
        say_json(_state_object(snapshot, state))
        return
    say_pages(_state_text(home, snapshot, state))


def _state_text(home: Home, snapshot: Snapshot, state: State | None) -> Iterator[str]:
    for name, value in [*checkpoint_facts(state), *snapshot_facts(snapshot)]:
        yield f"{name:<10} {value}"
    if state is None:
        return
    made = [one.op for one in state.moments if one.op is not None]
    calls = [one.times for one in state.calls if one.times is not None]
    sections = [
        ("State", channel_lines(state.channels)),
        ("Operations since the checkpoint before", op_lines(made) if made else []),
        ("Choices by cost", cost_lines(regrets(made))),
        ("Model calls", call_lines(calls) if calls else []),
        ("Effects on the outside by then", effect_lines(state.effects, home.clock()) if state.effects else []),
    ]
    for title, lines in sections:
        yield from section(title, lines)
    if state.change is not None:
        changes = [*variable_lines(state.change), *change_lines(list(state.change.files))]
        yield from section(
            f"{count(len(state.change.files), 'path')} changed since its parent", changes, header=False
        )
        outside = outside_lines(state.change, _MOST_OUTSIDE)
        title = f"{count(len(state.change.outside), 'path')} changed outside the workspace"
        yield from section(title, outside, header=False)


def section(title: str, lines: Sequence[str], *, header: bool = True) -> Iterator[str]:
    """A title and a table below it, whose first line is its header; nothing if there are no lines."""
    if not lines:
        return
    yield ""
    yield click.style(title, bold=True)
    yield from headed(lines) if header else lines


def channel_lines(channels: Channels | None) -> list[str]:
    """A line per channel; of messages, a line each."""
    from ramify.inspect.values import plain
    from ramify.runtime.langgraph.value_summary import line_of, messages_in

    if not channels:
        return []
    rows = []
    for name, value in sorted(channels.items()):
        messages = messages_in(plain(value))
        said = [fitted(line_of(one), _LONGEST) for one in messages] or [value_line(value, _LONGEST)]
        rows += [(printable(name), one) for one in said]
    return table(("KEY", "VALUE"), rows)


def cost_lines(choices: Sequence[Regret]) -> list[str]:
    """What the cost model chose, and its predicted and actual durations."""
    header = ("SEQ", "WHAT", "CHOSE", "PREDICTED", "TOOK", "INSTEAD")
    rows = [
        (str(c.seq), c.what, c.chose, seconds(c.predicted_s), seconds(c.took_s), seconds(c.instead_s))
        for c in choices
    ]
    return table(header, rows, right=("SEQ", *header[3:])) if rows else []


def _state_object(snapshot: Snapshot, state: State | None) -> dict[str, object]:
    kept = snapshot.processes
    told: dict[str, object] = {
        "snapshot": snapshot.id,
        "content_key": snapshot.content_key,
        "layers": list(snapshot.layers),
        "cwd": snapshot.cwd,
        "environment": dict(snapshot.env),
        "process_tier": kept.tier.value,
        "processes_dropped": kept.dropped,
        "process_reason": kept.reason,
        "run": None,
        "checkpoint": None,
        "branch": None,
        "label": None,
        "parents": [],
        "state": None,
        "changes": [],
        "outside": [],
    }
    if state is None:
        return told
    one, change = state.checkpoint, state.change
    return told | {
        "run": one.run_id,
        "checkpoint": one.id,
        "branch": one.branch,
        "label": one.label,
        "parents": list(one.parents),
        "state": None if state.channels is None else dict(state.channels),
        "costs": [asdict(each) for each in regrets([m.op for m in state.moments if m.op is not None])],
        "reused_from": state.made.reused_from if state.made else None,
        "operations": [op_object(state.history.run, moment.op) for moment in state.moments if moment.op is not None],
        "llm_calls": [moment.times.as_object() for moment in state.calls if moment.times is not None],
        "effects": [effect_object(effect) for effect in state.effects],
        "changes": [] if change is None else [change_object(changed) for changed in change.files],
        "outside": [] if change is None else [change_object(changed) for changed in change.outside],
        "environment_changes": []
        if change is None
        else [{"name": v.name, "before": v.before, "after": v.after} for v in change.variables],
    }


def op_lines(ops: Sequence[OpRecord]) -> list[str]:
    header = ("SEQ", "PLAN OP", "KIND", "BRANCH", "STEP", "TOOK", "SNAPSHOT", "RESULT")
    rows = []
    for op in ops:
        took = "-" if op.kind in (OpKind.SEAL, OpKind.RELEASE) else seconds(op.ended_at - op.started_at)
        said = "" if op.kind is OpKind.SEAL and AGAIN not in op.attrs else op.summary
        if op.reused_from:
            said = f"reused from {op.reused_from}: {op.summary}"
        if op.status is OpStatus.UNDONE:
            said = f"undone: {said}"
        if op.error:
            said = f"failed: {op.error[:LONGER].splitlines()[0]}"
        rows.append(
            (
                str(op.seq),
                op.op_id,
                op.kind.value,
                op.branch,
                printable(op.step or ""),
                took,
                (op.snapshot_out or "")[:12],
                fitted(said, 60),
            )
        )
    return table(header, rows, right=("SEQ", "TOOK"))


def op_object(run: RunRecord, op: OpRecord) -> dict[str, object]:
    return {
        "seq": op.seq,
        "key": op.key,
        "plan_op": op.op_id,
        "kind": op.kind.value,
        "branch": op.branch,
        "step": op.step,
        "status": op.status.value,
        "summary": op.summary,
        "result": json.loads(result_of(run, op) or "null") if op.step is not None else None,
        "reused_from": op.reused_from,
        "snapshot": op.snapshot_out,
        "took_s": op.ended_at - op.started_at,
        "error": op.error,
    }
