"""What the tabs describe: a node, or its whole run; and the tabs Timeline, Calls and Shell.

Timeline: steps and model calls as bars over time, with the deadlines. Idle time (a run that waited for a person, or
was resumed the next day) is cut short, so that the bars stay readable. Calls: prompts and answers with tokens, times
and deadlines. Shell: commands and their output, as far as the journal has them: a command with `reuse=True` has a row
of its own; of the others, every `RunResult` inside a step's result is shown.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.browse.tui.branch_graph import name_of
from ramify.browse.tui.styled_lines import (
    Look,
    StyledLine,
    fact_lines,
    heading,
    json_lines,
    line,
    paragraphs,
    safe,
    scope_of,
    table_lines,
    wrapped,
)
from ramify.compiler.plan import OpKind
from ramify.inspect.facts import call_lines
from ramify.inspect.model_calls import chat_request
from ramify.inspect.state import State, StateDiff, state_at
from ramify.inspect.text import clipped, seconds
from ramify.inspect.values import command_results
from ramify.runtime.codec import codec
from ramify.runtime.records import LLMRecord, OpStatus
from ramify.sandboxes.contract import RunResult
from ramify.serving.types import ChatRequest, ChatResult, Ledger

if TYPE_CHECKING:
    from ramify.browse.tui.branch_graph import Graph, Node
    from ramify.fork_engine.store import SnapshotStore
    from ramify.inspect.history import Moment
    from ramify.inspect.model_calls import CallTimes


class Tab(StrEnum):
    """The tabs in their order, which is also their number."""

    STATE = "State"
    FILES = "Files"
    TIMELINE = "Timeline"
    CALLS = "Calls"
    SHELL = "Shell"
    EFFECTS = "Effects"


@dataclass(frozen=True)
class Subject:
    """What the tabs describe: a node, by itself or with its whole run, and the state to compare it with."""

    graph: Graph
    node: Node
    snapshots: SnapshotStore
    database: str | Path
    status: str  # of the run
    now: float
    width: int
    whole_run: bool = False
    against: Node | None = None  # compare with this one; None: with the node's own parent

    def key(self, tab: Tab) -> tuple[object, ...]:
        """Equal for the same subject, even if there is more in it by now."""
        against = None if self.against is None else self.against.id
        return (self.graph.history.run.id, self.node.id, tab, self.whole_run, against)

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self.graph.history.moments if self.whole_run else self.node.moments

    @cached_property
    def state(self) -> State | None:
        """The node's state; None for an open end. Raises `SnapshotNotFound` if it was deleted."""
        one = self.node.checkpoint
        return None if one is None else state_at(self.graph.history, self.snapshots, one, self.database)

    @cached_property
    def change(self) -> StateDiff | None:
        """The differences from the state it is compared with; None for the original workspace, and for an open
        end.
        """
        if self.against is None or self.against.checkpoint is None:
            return None if self.state is None else self.state.change
        if self.node.checkpoint is None:
            return None
        ids = (self.against.checkpoint.snapshot_id, self.node.checkpoint.snapshot_id)
        return StateDiff(self.snapshots, *map(self.snapshots.get, ids))


_INSTANT = {OpKind.SEAL, OpKind.RELEASE, OpKind.BARRIER, OpKind.PREFORK, OpKind.FORK}
_WRONG = {Look.BAD: "✗ "}  # failed, or missed its deadline
_NAME, _TOOK = 18, 9  # columns
_IDLE = 0.1  # pauses longer than this share of the busy time are cut to
_CUT = 0.03


@dataclass(frozen=True)
class Axis:
    """The position of an instant, from 0 to 1. `knots`: (Unix seconds, position), both rising."""

    knots: tuple[tuple[float, float], ...]
    cuts: tuple[float, ...]  # positions of cut pauses

    def at(self, when: float) -> float:
        after = bisect_left(self.knots, (when, 0.0))
        if after == 0:
            return 0.0
        if after == len(self.knots):
            return 1.0
        (begin, low), (end, high) = self.knots[after - 1], self.knots[after]
        return low + (when - begin) / (end - begin) * (high - low)


def axis(spans: Sequence[tuple[float, float]]) -> Axis:
    """The axis over spans of work (begin, end), at least one."""
    busy: list[list[float]] = []
    for begin, end in sorted(spans):
        if busy and begin <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], end)
        else:
            busy.append([begin, end])
    worked = sum(end - begin for begin, end in busy)
    place, knots, cuts = 0.0, [(busy[0][0], 0.0)], []
    for at, (begin, end) in enumerate(busy):
        if at:
            pause = begin - busy[at - 1][1]
            shown = pause if pause <= _IDLE * worked else max(_CUT * worked, 1e-9)
            if shown < pause:
                cuts.append(place + shown / 2)
            place += shown
            knots.append((begin, place))
        place += end - begin
        knots.append((end, place))
    whole = place or 1.0
    return Axis(tuple((when, at / whole) for when, at in knots), tuple(cut / whole for cut in cuts))


def timeline_lines(of: Subject) -> Iterator[StyledLine]:
    """The lines of the tab Timeline."""
    run = of.graph.history.run
    drawn = [one for one in of.graph.history.moments if one.kind not in _INSTANT]
    mine = {one.seq for one in of.node.moments}
    shown = [one for one in drawn if of.whole_run or one.branch == of.node.branch]
    yield scope_of(of.whole_run, "Steps and model calls", "of this branch")
    if not shown:
        yield line("Nothing yet.")
        return
    first, last = min(one.started_at for one in shown), max(one.ended_at for one in shown)
    over = axis([span for one in drawn if (span := _within(one, first, last)) is not None])
    cut = ", pauses cut at ┊" if over.cuts else ""
    yield line(f"{seconds(max(0.0, last - first))} from first to last{cut}", Look.DIM)
    over_s = 0.0 if run.deadline_s is None else run.consumed_s - run.deadline_s
    if run.deadline_s is not None:
        said = f"deadline {seconds(run.deadline_s)}, {seconds(run.consumed_s)} used"
        yield line(f"{said}: {'missed' if over_s > 0 else 'kept so far'}", Look.BAD if over_s > 0 else Look.GOOD)
    ended = max(one.ended_at for one in drawn)
    deadline = ended - over_s if over_s > 0 else None
    room = max(10, of.width - _NAME - _TOOK - 2)
    for one in shown:
        name = clipped(f"{'▸' if one.seq in mine else ' '}{_WRONG.get(_look(one), '')}{safe(name_of(one))}", _NAME)
        head = (name.ljust(_NAME), Look.BOLD if one.seq in mine else Look.PLAIN)
        took = seconds(max(0.0, one.ended_at - one.started_at))
        spans = (head, _bar(one, over, room, deadline), (took.rjust(_TOOK), Look.DIM))
        yield StyledLine(spans, node=of.graph.holding(one))


def _within(one: Moment, first: float, last: float) -> tuple[float, float] | None:
    """The part of a moment, of any branch, that lies between two instants: time that was not idle."""
    begin, end = max(first, one.started_at), min(last, one.ended_at)
    return (begin, end) if begin <= end else None


def _bar(one: Moment, over: Axis, room: int, deadline: float | None) -> tuple[str, Look]:
    begin = min(room - 1, int(over.at(one.started_at) * room))
    end = max(begin + 1, min(room, round(over.at(one.ended_at) * room)))
    cells = [" "] * room
    for cut in over.cuts:
        cells[min(room - 1, int(cut * room))] = "┊"
    times = one.times
    ends = deadline if times is None or times.deadline_s is None else one.started_at + times.deadline_s
    if ends is not None and over.knots[0][0] <= ends <= over.knots[-1][0]:
        cells[min(room - 1, int(over.at(ends) * room))] = "┃"
    cells[begin:end] = ("▒" if one.reused_from else "█") * (end - begin)
    return "".join(cells), _look(one)


def _look(one: Moment) -> Look:
    if one.status in (OpStatus.FAILED, OpStatus.UNDONE):
        return Look.BAD
    if one.llm is None:
        return Look.INFO if one.reused_from is None else Look.DIM
    times = one.times
    return Look.BAD if times is not None and times.met is False else Look.NOTE


_ROLES = {"system": Look.DIM, "user": Look.INFO, "assistant": Look.GOOD, "tool": Look.NOTE}


def call_tab_lines(of: Subject) -> Iterator[StyledLine]:
    """The lines of the tab Calls."""
    made = [(moment.llm, moment.times) for moment in of.moments]
    calls = [(row, times) for row, times in made if row is not None and times is not None]
    yield scope_of(of.whole_run, "Model calls")
    if not calls:
        yield line("None.")
        return
    bodies = [list(_call(row, times, of.width)) for row, times in calls]
    at, begins = len(calls) + 2, []
    for body in bodies:
        begins.append(at + 1)
        at += len(body)
    yield from table_lines(call_lines([times for _, times in calls]), targets=begins)
    for body in bodies:
        yield from body


def _call(row: LLMRecord, times: CallTimes, width: int) -> Iterator[StyledLine]:
    yield from heading(f"call #{row.seq}  {times.verdict if times.met is not None else 'best effort'}")
    result = codec.decode_own(row.result_json, ChatResult)
    request = chat_request(row)
    facts = [("branch", row.branch), ("model", result.model), ("tags", times.tags_line)]
    if request is not None:
        facts.append(("sampling", _sampling(request)))
    yield from fact_lines([*facts, *_ledger(times, result)])
    if request is not None:
        for message in request.messages:
            yield line(message.role, Look.BOLD)
            yield from wrapped(message.content, width, _ROLES[message.role], indent="  ")
    else:  # recorded in a front end's own form
        yield line("request", Look.BOLD)
        yield from json_lines(row.request_json, width)
    yield line(f"answer ({result.finish_reason})", Look.BOLD)
    yield from wrapped(result.text, width, _ROLES["assistant"], indent="  ")


def _sampling(request: ChatRequest) -> str:
    told = [
        f"temperature {request.temperature:g}",
        f"top_p {request.top_p:g}",
        f"at most {request.max_tokens} tokens",
    ]
    if request.seed is not None:
        told.append(f"seed {request.seed}")
    if request.sample:
        told.append(f"sample {request.sample}")
    return ", ".join(told)


def _ledger(times: CallTimes, result: ChatResult) -> Iterator[tuple[str, str]]:
    yield "tokens", f"{times.prompt_tokens} in, {times.completion_tokens} out"
    yield "took", seconds(times.end_s)
    if times.deadline_s is not None:
        yield "deadline", f"{seconds(times.deadline_s)} left at arrival: {times.verdict}"
    ledger = result.ledger
    if ledger is not None:
        yield "ledger", _where_time_went(ledger)


def _where_time_went(ledger: Ledger) -> str:
    told = [f"queued {seconds(ledger.queue_s)}", f"first token {seconds(ledger.first_token_s)}"]
    told += [f"decoded {seconds(ledger.decode_s)}"] if ledger.decode_s else []
    if ledger.qoe is not None:
        told.append(f"quality of experience {ledger.qoe:.2f}")
    if ledger.preemptions:
        told.append(f"preempted {ledger.preemptions} times for {seconds(ledger.preempted_s)}")
    told += [f"{ledger.attempts} attempts"] if ledger.attempts > 1 else []
    return ", ".join(told)


_STEPS = {OpKind.RUN, OpKind.CALL_TOOL, OpKind.BREAK, OpKind.COMMAND}


def shell_lines(of: Subject) -> Iterator[StyledLine]:
    """The lines of the tab Shell."""
    yield scope_of(of.whole_run, "Commands and output")
    told = [moment for moment in of.moments if moment.kind in _STEPS]
    if not told:
        yield line("No steps.")
    for moment in told:
        yield from _step(moment)


def _step(moment: Moment) -> Iterator[StyledLine]:
    results = list(command_results(json.loads(moment.op.result_json or "null"))) if moment.op is not None else []
    if moment.kind is OpKind.COMMAND:
        yield StyledLine()
    else:
        yield from heading(f"{moment.name}  {seconds(moment.ended_at - moment.started_at)}")
    for result in results:
        yield from command_lines(result)
    if moment.op is not None and moment.op.error:
        yield from paragraphs(moment.op.error.rstrip("\n"), Look.BAD)
    elif not results and moment.summary:
        yield from paragraphs(moment.summary)


def command_lines(result: RunResult) -> Iterator[StyledLine]:
    first, *rest = result.command.rstrip("\n").split("\n")
    yield StyledLine((("$ ", Look.INFO), (line(first).text, Look.BOLD)))
    for one in rest:
        yield line(f"  {one}", Look.BOLD)
    for text, look in ((result.stdout, Look.PLAIN), (result.stderr, Look.BAD)):
        if text:
            yield from paragraphs(text.removesuffix("\n"), look)
    if result.timed_out or result.truncated or result.exit_code:
        told = [f"exit {result.exit_code}"]
        told += ["timed out"] if result.timed_out else []
        told += ["output cut"] if result.truncated else []
        yield line(", ".join(told), Look.NOTE)
