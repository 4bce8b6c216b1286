"""What `ramify show` says of one state: where it stands, what made it, what it changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ramify.cli.branch_tree import shown
from ramify.cli.commands.diff import change_lines, change_object, variable_lines
from ramify.cli.commands.effects import effect_lines, effect_object
from ramify.cli.commands.operations import op_lines, op_object
from ramify.cli.console import App, find_state_with_history, headed, say_json, say_pages
from ramify.compiler.plan import OpKind, PlanError
from ramify.inspect.state import Channels, State, state_at
from ramify.inspect.text import count, fitted, instant, seconds, table
from ramify.runtime.estimates.cost_model import Regret, regrets

if TYPE_CHECKING:
    from ramify.fork_engine.types import Snapshot
    from ramify.inspect.model_calls import CallTimes


_LONGEST = 160


def show_state(app: App, text: str, as_json: bool) -> None:
    """A checkpoint with all that is known of it; of a bare snapshot, what it holds."""
    place, history = app.look(lambda store: find_state_with_history(store, text))
    snapshots = app.snapshots()
    snapshot = snapshots.get(place.snapshot)
    state = None
    if history is not None and place.checkpoint is not None:
        state = state_at(history, snapshots, place.checkpoint, app.database)
    if as_json:
        say_json(_state_object(snapshot, state))
        return
    say_pages(_lines(app, snapshot, state))


def _lines(app: App, snapshot: Snapshot, state: State | None) -> Iterator[str]:
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
        ("Effects on the outside by then", effect_lines(state.effects, app.clock()) if state.effects else []),
    ]
    for title, lines in sections:
        yield from section(title, lines)
    if state.change is not None:
        changes = [*variable_lines(state.change), *change_lines(list(state.change.files))]
        yield from section(
            f"{count(len(state.change.files), 'path')} changed since its parent", changes, header=False
        )


def section(title: str, lines: Sequence[str], *, header: bool = True) -> Iterator[str]:
    """A title and a table below it, whose first line is its header; nothing where there are no lines."""
    if not lines:
        return
    yield ""
    yield click.style(title, bold=True)
    yield from headed(lines) if header else lines


def channel_lines(channels: Channels | None) -> list[str]:
    """A line a channel; of messages, a line each."""
    from ramify.inspect.values import plain, spoken
    from ramify.runtime.langgraph.value_summary import line_of, messages_in

    if not channels:
        return []
    rows = []
    for name, value in sorted(channels.items()):
        said = [line_of(one) for one in messages_in(plain(value))] or [spoken(value)]
        rows += [(shown(name), fitted(shown(one), _LONGEST)) for one in said]
    return table(("KEY", "VALUE"), rows)


def cost_lines(choices: Sequence[Regret]) -> list[str]:
    """What the cost model chose, and what that was predicted to take and took."""
    header = ("SEQ", "WHAT", "CHOSE", "PREDICTED", "TOOK", "INSTEAD")
    rows = [
        (str(c.seq), c.what, c.chose, seconds(c.predicted_s), seconds(c.took_s), seconds(c.instead_s))
        for c in choices
    ]
    return table(header, rows, right=("SEQ", *header[3:])) if rows else []


def checkpoint_facts(state: State | None) -> list[tuple[str, str]]:
    if state is None:
        return []
    one, made = state.checkpoint, state.made
    facts = [
        ("checkpoint", one.id),
        ("run", one.run_id),
        ("branch", one.branch),
        ("label", shown(one.label)),
        ("made", instant(one.created_at)),
        ("parents", ", ".join(one.parents) or "none"),
    ]
    facts.append(("cost", cost_line(state)))
    if made is not None and made.reused_from:
        facts.append(("reused", f"from {made.reused_from}"))
    return facts


def cost_line(state: State) -> str:
    """Since the checkpoint before: the seconds of its steps and model calls, and those that the plan expected."""
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
    """Of the stages of model calls since the checkpoint before, by the plan."""
    mine = {one.llm.op_id for one in state.calls if one.llm is not None}
    try:
        expected = [stage.seconds for stage in state.history.plan.expected if stage.op in mine] if mine else []
    except PlanError:  # by another version of ramify, which is no reason not to show the rest
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
        ("folder", shown(snapshot.cwd or ".")),
        ("variables", f"{len(snapshot.env)} set, {len(snapshot.env_unset)} unset"),
        ("shell", "kept whole" if kept.shell else "a fresh one"),
        ("processes", shown(processes)),
    ]


def call_lines(calls: Sequence[CallTimes]) -> list[str]:
    """Of model calls at one state: what they took and gave."""
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
        "environment_changes": []
        if change is None
        else [{"name": v.name, "before": v.before, "after": v.after} for v in change.variables],
    }
