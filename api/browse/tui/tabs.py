"""The tab State: where a node stands, what was done there and what came of it, and the run that it is of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramify.browse.tui.branch_graph import name_of
from ramify.browse.tui.shell import command_lines, command_result
from ramify.browse.tui.styled_lines import Line, Look, fact_lines, heading, json_lines, line, safe, wrapped
from ramify.cli.commands.show import deadline_line
from ramify.cli.commands.state import checkpoint_facts, snapshot_facts
from ramify.compiler.plan import OpKind
from ramify.inspect.text import clipped, instant, seconds
from ramify.runtime.records import OpStatus, RunRecord

if TYPE_CHECKING:
    from ramify.browse.tui.subject import Subject
    from ramify.inspect.history import History, Moment

_QUIET = {OpKind.SEAL, OpKind.BARRIER, OpKind.PREFORK, OpKind.RELEASE, OpKind.ENTER}


def lines(of: Subject) -> Iterator[Line]:
    if of.node.checkpoint is None:
        said = "What this branch did after its last checkpoint. It was not sealed, so it has no state of its own."
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


def moment_lines(moment: Moment, history: History, width: int) -> Iterator[Line]:
    """A step with its result, or what it raised."""
    mark, look = "●", Look.GOOD
    if moment.status in (OpStatus.FAILED, OpStatus.UNDONE):
        mark, look = "✗", Look.BAD
    elif moment.status is OpStatus.ASKED:
        mark, look = "?", Look.NOTE
    took = seconds(moment.ended_at - moment.started_at)
    said = f"reused from {moment.reused_from}" if moment.reused_from else took
    yield Line(((f"{mark} ", look), (clipped(safe(name_of(moment)), 80), Look.BOLD), (f"  {said}", Look.DIM)))
    if moment.op is None:
        return
    if moment.op.error:
        yield from wrapped(moment.op.error, width, Look.BAD, indent="    ")
    elif moment.kind in (OpKind.FORK, OpKind.MERGE):
        yield from wrapped(moment.summary, width, indent="    ")
    elif (result := command_result(moment.op)) is not None:
        for one in command_lines(result):
            yield Line((("    ", Look.PLAIN), *one.spans))
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
