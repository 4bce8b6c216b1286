"""The tab Timeline: steps and model calls as bars over time, against the deadlines.

Time in which nothing was done (a run that waited for a person, or was resumed the next day) is cut short, so that
the bars keep a size that can be read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramify.browse.tui.branch_graph import name_of
from ramify.browse.tui.styled_lines import Line, Look, line, safe, scope_of
from ramify.compiler.plan import OpKind
from ramify.inspect.text import clipped, seconds
from ramify.runtime.records import OpStatus

if TYPE_CHECKING:
    from ramify.browse.tui.subject import Subject
    from ramify.inspect.history import Moment

_INSTANT = {OpKind.SEAL, OpKind.RELEASE, OpKind.BARRIER, OpKind.PREFORK, OpKind.FORK}
_WRONG = {Look.BAD: "✗ "}  # failed, or later than its deadline
_NAME, _TOOK = 18, 9  # columns
_IDLE = 0.1  # of the time that was worked: a longer pause is cut to
_CUT = 0.03


@dataclass(frozen=True)
class Axis:
    """Where an instant stands, from 0 to 1. `knots`: (Unix seconds, place), both rising."""

    knots: tuple[tuple[float, float], ...]
    cuts: tuple[float, ...]  # places where a pause was cut

    def at(self, when: float) -> float:
        after = bisect_left(self.knots, (when, 0.0))
        if after == 0:
            return 0.0
        if after == len(self.knots):
            return 1.0
        (begin, low), (end, high) = self.knots[after - 1], self.knots[after]
        return low + (when - begin) / (end - begin) * (high - low)


def axis(spans: Sequence[tuple[float, float]]) -> Axis:
    """Over spans of work (begin, end), at least one."""
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


def lines(of: Subject) -> Iterator[Line]:
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
        yield Line(spans, node=of.graph.holding(one))


def _within(one: Moment, first: float, last: float) -> tuple[float, float] | None:
    """The part of a moment, of whatever branch, that lies between: nobody waited idly then."""
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
