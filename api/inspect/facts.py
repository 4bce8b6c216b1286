"""Runs, states, model calls and changes as lines of text, for the command line and the terminal browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from ramify.compiler.plan import OpKind, PlanError
from ramify.inspect.text import age, count, fitted, instant, printable, quoted_path, seconds, table
from ramify.runtime.records import Lease, RunId, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.fork_engine.types import Change, Snapshot
    from ramify.inspect.model_calls import CallTimes
    from ramify.inspect.state import State, StateDiff
    from ramify.runtime.store import Tally

_LONGEST = 60


def run_table(
    runs: Sequence[RunRecord],
    tallies: Mapping[RunId, Tally],
    statuses: Mapping[RunId, str],
    now: float,
    leases: Mapping[RunId, Lease] = MappingProxyType({}),
) -> list[str]:
    """A line per run. `leases`: of the runs that are being worked on; if there are any, a column says who does."""
    header: tuple[str, ...] = ("RUN", "NAME", "STATUS", "AGE", "STEPS", "FORKS", "REUSED", "MODEL CALLS")
    rows = []
    for run in runs:
        tally = tallies[run.id]
        counts = (tally.steps, tally.forks, tally.reused, tally.llm_calls)
        row = (run.id, printable(run.name), statuses[run.id], age(now - run.created_at), *map(str, counts))
        rows.append((*row, owner_line(leases.get(run.id))) if leases else row)
    return table((*header, "OWNER (LEASE)") if leases else header, rows, right=header[3:])


def owner_line(lease: Lease | None) -> str:
    """Who works on a run, and when that process last renewed its lease."""
    return "" if lease is None else f"{printable(lease.host)} process {lease.pid} ({age(lease.age_s)})"


def deadline_line(run: RunRecord) -> str:
    used = seconds(run.consumed_s)
    if run.deadline_s is None:
        return f"none, {used} used"
    return f"{seconds(run.deadline_s)}, {used} used: {deadline_verdict(run)}"


def deadline_verdict(run: RunRecord) -> str:
    if run.deadline_s is None:
        return "-"
    if run.consumed_s > run.deadline_s:
        return "missed"
    return "met" if run.status is RunStatus.DONE else "not over yet"


def checkpoint_facts(state: State | None) -> list[tuple[str, str]]:
    if state is None:
        return []
    one, made = state.checkpoint, state.made
    facts = [
        ("checkpoint", one.id),
        ("run", one.run_id),
        ("branch", one.branch),
        ("label", printable(one.label)),
        ("made", instant(one.created_at)),
        ("parents", ", ".join(one.parents) or "none"),
    ]
    facts.append(("cost", cost_line(state)))
    if made is not None and made.reused_from:
        facts.append(("reused", f"from {made.reused_from}"))
    return facts


def cost_line(state: State) -> str:
    """The seconds and tokens of its steps and model calls since the previous checkpoint, and the seconds that the
    plan expected.
    """
    steps = [one for one in state.moments if one.op is not None and one.kind is OpKind.RUN]
    took = sum(one.ended_at - one.started_at for one in steps if not one.reused_from)
    times = [one.times for one in state.calls]
    tokens = [(one.prompt_tokens, one.completion_tokens) for one in times if one is not None and not one.reused_from]
    parts = [f"{seconds(took)} in {count(len(steps), 'step')}"]
    if tokens:
        given, answered = (sum(each) for each in zip(*tokens, strict=True))
        parts.append(f"{count(len(tokens), 'model call')}, {given} + {answered} tokens")
    reused = sum(one.reused_from is not None for one in (*steps, *state.calls))
    if reused:
        parts.append(f"{reused} of them reused")
    expected = _expected_s(state)
    if expected is not None:
        parts.append(f"{seconds(expected)} expected of the model")
    return ", ".join(parts)


def _expected_s(state: State) -> float | None:
    """The expected seconds of the stages of model calls since the previous checkpoint, by the plan."""
    mine = {one.llm.op_id for one in state.calls if one.llm is not None}
    try:
        expected = [stage.seconds for stage in state.history.plan.expected if stage.op in mine] if mine else []
    except PlanError:  # a plan of another version: show the rest
        return None
    return sum(expected) if expected else None


def snapshot_facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    kept = snapshot.processes
    processes = kept.tier.value
    if kept.dropped:
        processes += f", {count(kept.dropped, 'process')} not kept"
    if kept.reason:
        processes += f": {kept.reason}"
    return [
        ("snapshot", snapshot.id),
        ("layers", str(len(snapshot.layers))),
        ("folder", printable(snapshot.cwd or ".")),
        ("variables", f"{len(snapshot.env)} set, {len(snapshot.env_unset)} unset"),
        ("shell", "kept whole" if kept.shell else "a fresh one"),
        ("processes", printable(processes)),
    ]


def call_lines(calls: Sequence[CallTimes]) -> list[str]:
    """A table of the model calls at one state."""
    header = ("SEQ", "TAGS", "PROMPT", "ANSWER", "QUEUED", "FIRST TOKEN", "END", "DEADLINE", "MET")
    rows = [
        (
            str(call.seq),
            call.tags_line,
            f"{call.prompt_tokens} tok",
            f"{call.completion_tokens} tok",
            seconds(call.queued_s),
            seconds(call.first_token_s),
            seconds(call.end_s),
            seconds(call.deadline_s),
            call.verdict,
        )
        for call in calls
    ]
    return table(header, rows, right=("SEQ", *header[2:8]))


def change_lines(changes: list[Change]) -> list[str]:
    """A line per path, as `git status --short`: A, D, M, T (type) or P (permissions)."""
    letters = {"added": "A", "removed": "D", "modified": "M", "type": "T", "mode": "P"}
    return [f"{letters[change.kind.value]} {quoted_path(change.path)}" for change in changes]


def outside_lines(between: StateDiff, most: int) -> list[str]:
    """A line per path outside the workspace, as `change_lines`, for the first `most`; a line says how many more."""
    lines = [f"outside: {one}" for one in change_lines(list(between.outside[:most]))]
    more = len(between.outside) - most
    return (
        [*lines, f"outside: and {count(more, 'more path')}; `ramify diff --name-only` lists all"]
        if more > 0
        else lines
    )


def variable_lines(between: StateDiff) -> list[str]:
    """A line per environment variable that differs, and one for the folder."""
    lines = [
        f"environment: {printable(one.name)}: {_value(one.before)} -> {_value(one.after)}"
        for one in between.variables
    ]
    if between.moved:
        lines.append(f"folder: {printable(between.before.cwd or '.')} -> {printable(between.after.cwd or '.')}")
    return lines


def _value(value: str | None) -> str:
    return "not set" if value is None else repr(fitted(value, _LONGEST))
