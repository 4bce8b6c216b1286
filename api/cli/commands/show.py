"""`ramify show`: one run with the times of its model calls, or one state with the files that it changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ramify.cli.branch_tree import shown
from ramify.cli.commands.operations import op_lines, op_object
from ramify.cli.commands.state import section, show_state
from ramify.cli.completion import state_names
from ramify.cli.console import App, find_run, pass_app, say_json, say_pages
from ramify.inspect.text import age, count, fitted, instant, seconds, table
from ramify.inspect.values import spoken
from ramify.runtime.records import DOUBTFUL, EffectRecord, LLMRecord, OpRecord, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.inspect.model_calls import CallTimes
    from ramify.runtime.store import Tally
    from ramify.runtime.store.reader import Reader

_LONGEST = 200


@click.command("show")
@click.argument("state", metavar="[RUN|STATE]", default="@", shell_complete=state_names)
@click.option("--json", "as_json", is_flag=True, help="One object.")
@pass_app
def show_command(app: App, state: str, as_json: bool) -> None:
    """A RUN (the newest): its steps, its deadline, and for each model call its tags, how long it was queued, its
    first token, its end and whether it met its deadline. Or a STATE of one: its snapshot and what changed there.

    \b
    Example: ramify show @~1
    """
    read = app.look(lambda store: _read_run(store, state))
    if read is None:
        show_state(app, state, as_json)
        return
    run, tally, ops, llm, effects = read
    from ramify.inspect.model_calls import call_times

    calls = [call_times(row) for row in llm]
    if as_json:
        say_json(_run_object(run, app.status(run), ops, calls))
        return
    status, complete = app.status(run), app.typed.complete
    facts = [*run_lines(run, status, tally, app.clock()), *map(complete, effects_line(run, status, effects))]
    say_pages(_lines(facts, op_lines(ops), slo_lines(run, calls)))


def _lines(facts: Sequence[str], operations: Sequence[str], calls: Sequence[str]) -> Iterator[str]:
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
    """What a run is, a line a fact."""
    facts = [
        ("run", f"{run.id}  {status}"),
        ("workflow", shown(run.workflow)),
        ("workspace", shown(run.workspace) or "none"),
        ("arguments", fitted(shown(run.args_json), _LONGEST)),
        ("sandbox", run.settings.sandbox),
        ("began", f"{instant(run.created_at)} ({age(now - run.created_at)})"),
        ("deadline", deadline_line(run)),
        ("steps", f"{tally.steps} done, {tally.reused} of them reused; {count(tally.failed, 'failed attempt')}"),
        ("worlds", f"{tally.forks} forked, {tally.merges} merged"),
        ("model", count(tally.llm_calls, "call")),
    ]
    if run.result_json is not None:
        facts.append(("result", fitted(shown(spoken(json.loads(run.result_json))), _LONGEST)))
    if run.error:
        facts.append(("error", fitted(shown(run.error), _LONGEST)))
    return [f"{name:<10} {value}" for name, value in facts]


def effects_line(run: RunRecord, status: str, effects: Sequence[EffectRecord]) -> list[str]:
    """What it did outside, where it did: a step that was killed in its effect has no row of the journal yet."""
    if not effects:
        return []
    doubtful = [shown(one.step) for one in effects if one.status in DOUBTFUL and status != RunStatus.RUNNING]
    unknown = f", not known whether done: {', '.join(doubtful)} (`ramify effects {run.id}`)" if doubtful else ""
    return [f"{'effects':<10} {len(effects)} begun{unknown}"]


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
        "operations": [op_object(run, op) for op in ops],
        "llm_calls": [call.as_object() for call in calls],
    }
