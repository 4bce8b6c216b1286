"""The tabs State, Files and Effects, and the lines of any tab for a node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramify.browse.tui.activity_tabs import Subject, Tab, call_tab_lines, command_lines, shell_lines, timeline_lines
from ramify.browse.tui.branch_graph import name_of
from ramify.browse.tui.styled_lines import (
    Look,
    StyledLine,
    fact_lines,
    heading,
    json_lines,
    line,
    safe,
    scope_of,
    wrapped,
)
from ramify.compiler.plan import OpKind
from ramify.fork_engine.errors import ForkEngineError
from ramify.inspect.facts import (
    change_lines,
    checkpoint_facts,
    deadline_line,
    outside_lines,
    snapshot_facts,
    variable_lines,
)
from ramify.inspect.text import clipped, count, instant, seconds
from ramify.inspect.values import command_result
from ramify.runtime.records import EffectRecord, EffectStatus, OpStatus, RunRecord

if TYPE_CHECKING:
    from ramify.inspect.history import History, Moment
    from ramify.inspect.patch import FilePatch
    from ramify.inspect.state import StateDiff


def lines_of(tab: Tab, of: Subject) -> tuple[StyledLine, ...]:
    """The lines of a tab. If a snapshot is gone, they say so.

    It may read snapshots and compare files: call it outside the event loop.
    """
    try:
        return tuple(_lines(tab, of))
    except ForkEngineError as error:
        return tuple(wrapped(str(error), of.width, Look.BAD))


def _lines(tab: Tab, of: Subject) -> Iterator[StyledLine]:
    match tab:
        case Tab.STATE:
            return _state_lines(of)
        case Tab.FILES:
            return _file_lines(of)
        case Tab.TIMELINE:
            return timeline_lines(of)
        case Tab.CALLS:
            return call_tab_lines(of)
        case Tab.SHELL:
            return shell_lines(of)
        case Tab.EFFECTS:
            return _effect_tab(of)


_QUIET = {OpKind.SEAL, OpKind.BARRIER, OpKind.PREFORK, OpKind.RELEASE, OpKind.ENTER}


def _state_lines(of: Subject) -> Iterator[StyledLine]:
    """The tab State: where a node is, what was done there with which result, and its run."""
    if of.node.checkpoint is None:
        said = "What this branch did after its last checkpoint. It was not sealed, so it has no state."
        yield from wrapped(said, of.width, Look.NOTE)
        yield from fact_lines([("branch", of.node.branch), ("after", ", ".join(of.node.parents) or "none")])
    elif of.state is not None:
        yield from fact_lines(checkpoint_facts(of.state))
        yield from fact_lines(snapshot_facts(of.state.snapshot))
    told = [moment for moment in of.node.moments if moment.kind not in _QUIET and moment.llm is None]
    if told:
        yield from heading("What was done")
    for moment in told:
        yield from moment_lines(moment, of.graph.history, of.width)
    if of.state is not None and of.state.channels:
        yield from heading("State")
        for name, value in of.state.channels.items():
            yield line(name, Look.DIM)
            yield from json_lines(json.dumps(value), of.width)
    if of.state is not None and of.state.snapshot.env:
        yield from heading("Variables of the shell")
        yield from fact_lines(sorted(of.state.snapshot.env.items()))
    yield from heading("The run")
    yield from fact_lines(run_facts(of.graph.history.run, of.status))
    for name, value in (("arguments", of.graph.history.run.args_json), ("result", of.graph.history.run.result_json)):
        if value is not None:
            yield line(name, Look.DIM)
            yield from json_lines(value, of.width)
    if of.graph.history.run.error:
        yield line("error", Look.DIM)
        yield from wrapped(of.graph.history.run.error, of.width, Look.BAD, indent="  ")


def moment_lines(moment: Moment, history: History, width: int) -> Iterator[StyledLine]:
    """A step with its result, or with what it raised."""
    mark, look = "●", Look.GOOD
    if moment.status in (OpStatus.FAILED, OpStatus.UNDONE):
        mark, look = "✗", Look.BAD
    elif moment.status in (OpStatus.ASKED, OpStatus.BEGUN):
        mark, look = "?" if moment.status is OpStatus.ASKED else "…", Look.NOTE
    took = seconds(moment.ended_at - moment.started_at)
    said = f"reused from {moment.reused_from}" if moment.reused_from else took
    yield StyledLine(((f"{mark} ", look), (clipped(safe(name_of(moment)), 80), Look.BOLD), (f"  {said}", Look.DIM)))
    if moment.op is None:
        return
    if moment.op.error:
        yield from wrapped(moment.op.error, width, Look.BAD, indent="    ")
    elif moment.kind in (OpKind.FORK, OpKind.MERGE):
        yield from wrapped(moment.summary, width, indent="    ")
    elif (result := command_result(moment.op)) is not None:
        for one in command_lines(result):
            yield StyledLine((("    ", Look.PLAIN), *one.spans))
    elif (value := history.result_of(moment.op)) not in (None, "null", '""'):
        yield from json_lines(value or "null", width, indent="    ")


def run_facts(run: RunRecord, status: str) -> list[tuple[str, str]]:
    return [
        ("run", f"{run.id}  {status}"),
        ("workflow", run.workflow),
        ("workspace", run.workspace or "none"),
        ("sandbox", run.settings.sandbox),
        ("began", instant(run.created_at)),
        ("deadline", deadline_line(run)),
    ]


_PATCH_LOOKS = (
    ("diff ", Look.HEAD),
    ("+++ ", Look.BOLD),
    ("--- ", Look.BOLD),
    ("@@", Look.INFO),
    ("+", Look.GOOD),
    ("-", Look.BAD),
)
_MOST_OUTSIDE = 200  # paths outside the workspace, above the list of files
_CHANGES = {"A": Look.GOOD, "D": Look.BAD}


def _file_lines(of: Subject) -> Iterator[StyledLine]:
    """The tab Files: changes of the environment and of files, as a list that leads to the diffs below."""
    change = of.change
    if change is None:
        nothing = "The original workspace" if of.node.checkpoint else "Not sealed: its files were not stored"
        yield from wrapped(f"{nothing}. m marks a state, d shows the differences from it.", of.width, Look.NOTE)
        return
    since = "since its parent" if of.against is None else f"since {of.against.id[:10]} ({of.against.branch})"
    yield line(f"{count(len(change.files), 'path')} changed {since}", Look.BOLD)
    notes = [*variable_lines(change), *outside_lines(change, _MOST_OUTSIDE)]
    yield from (line(one, Look.NOTE) for one in notes)
    yield from _files(change, 1 + len(notes))


def _files(change: StateDiff, above: int) -> Iterator[StyledLine]:
    """The list, and the diffs below it. above: the lines that stand above the list."""
    by_path = {patch.path: patch for patch in change.patches}
    bodies = {path: list(_patch_lines(patch)) for path, patch in by_path.items()}
    at = above + len(change.files) + 1
    for one, said in zip(change.files, change_lines(list(change.files)), strict=True):
        body = bodies.get(one.path)
        spans = ((f"{said[:1]} ", _CHANGES.get(said[:1], Look.NOTE)), (line(said[2:]).text, Look.PLAIN))
        yield StyledLine(spans + _counts(by_path.get(one.path)), to=None if body is None else at)
        at += len(body or ())
    yield StyledLine()
    for one in change.files:
        yield from bodies.get(one.path, ())


def _counts(patch: FilePatch | None) -> tuple[tuple[str, Look], ...]:
    if patch is None:
        return ()
    if patch.added is None or patch.removed is None:
        return (("  binary or large", Look.DIM),)
    return ((f"  +{patch.added}", Look.GOOD), (f" -{patch.removed}", Look.BAD))


def _patch_lines(patch: FilePatch) -> Iterator[StyledLine]:
    for one in os.fsdecode(patch.text).split("\n")[:-1]:
        look = next((look for start, look in _PATCH_LOOKS if one.startswith(start)), Look.PLAIN)
        yield line(one, look)
    yield StyledLine()


_EFFECT_LOOKS = {
    EffectStatus.DONE: Look.GOOD,
    EffectStatus.APPROVED: Look.GOOD,
    EffectStatus.INTENDED: Look.NOTE,
    EffectStatus.IN_DOUBT: Look.BAD,
    EffectStatus.FAILED: Look.DIM,
    EffectStatus.AGAIN: Look.NOTE,
    EffectStatus.COMPENSATING: Look.NOTE,
    EffectStatus.COMPENSATED: Look.INFO,
}


def _effect_tab(of: Subject) -> Iterator[StyledLine]:
    """The tab Effects: irreversible effects so far."""
    whole = of.whole_run or of.state is None
    ledger = of.graph.history.effects if whole or of.state is None else of.state.effects
    yield scope_of(whole, "Irreversible effects", "by then")
    if not ledger:
        yield line("None: no irreversible step ran.")
    here = {moment.op.key for moment in of.node.moments if moment.op is not None}
    last = {one.key: one.attempt for one in ledger}
    for one in ledger:
        yield from _effect(one, of, last[one.key], here=one.key in here)


def _effect(one: EffectRecord, of: Subject, attempts: int, *, here: bool) -> Iterator[StyledLine]:
    yield StyledLine()
    where = "  done here" if here and one.attempt == attempts else ""
    spans = (
        (f"{one.status.value:<12}", _EFFECT_LOOKS[one.status]),
        (line(one.step).text, Look.BOLD),
        (where, Look.INFO),
    )
    yield StyledLine(spans)
    settled = "not yet" if one.settled_at is None else instant(one.settled_at)
    facts = [("key", one.idempotency_key), ("branch", one.branch)]
    facts += [("attempt", f"{one.attempt} of {attempts}")] if attempts > 1 else []
    facts += [("intended", instant(one.intended_at))]
    facts += [("settled", settled), ("known by", one.note)]
    yield from fact_lines((f"  {name}", value) for name, value in facts if value)
    yield line("  arguments", Look.DIM)
    yield from json_lines(one.args_json, of.width, indent="    ")
    if one.result_json is not None:
        yield line("  result", Look.DIM)
        yield from json_lines(one.result_json, of.width, indent="    ")
    if one.status is EffectStatus.IN_DOUBT and one.attempt == attempts:
        yield line(f"  `ramify approve {of.graph.history.run.id}` says whether it happened", Look.NOTE)
