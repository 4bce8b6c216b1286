"""`StreamFigures`: what figures of the Andes thesis show, from watched replays, as rows.

| figure | of the thesis | what it shows |
|---|---|---|
| timelines | 2.10 | when each token of a stream came, against when its reader wanted it |
| batches | A.1 | tokens of context by batch size; a policy may tell a step's time from the batch size alone |
| pacer | A.2 | tokens that a pacer holds over the time of a stream, and breaks of the server that it hides |
| delivery | A.3 | QoE, time to first token and speed of each stream |
| memory | A.4 | KV in use and calls that wait over the time of a burst |
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from math import nan
from statistics import correlation, fmean, median, quantiles
from typing import Any

from benchmarks.replay.inputs.stream_loads import CYCLE_S, HARD
from benchmarks.replay.simulation.outcomes import qoe_of
from benchmarks.replay.types import Program, WatchedStep
from benchmarks.rows import Row, row
from ramify.serving.pacing import Pacer

PLACES = {"the first token": 0.0, "the middle one": 0.5, "the last": 1.0}  # of a stream
PARTS = (0.1, 0.25, 0.5, 0.75)  # of the time in which a pacer gives a stream out
BREAK_S = 2.0  # a time without a token from the server counts as a break from here on
WIDTH = 4  # batch sizes from 1 to 4 are shown together, then from 5 to 8, …
SLICE_S = 30.0  # of a cycle of bursts
_FEWEST = 20  # of steps that are shown


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many values."""

    low: float  # a tenth is below
    median: float
    high: float  # a tenth is above
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            one = values[0] if values else nan
            return cls(one, one, one, len(values))
        tenths = quantiles(values, n=10, method="inclusive")
        return cls(tenths[0], median(values), tenths[-1], len(values))

    def row(self, name: str, unit: str, digits: int | None, note: str) -> Row:
        """Return the row of these values. `digits`: after the point; None for whole numbers."""
        if not self.count:
            return row(name, None, unit, note="nothing was seen")
        spread = [round(self.low, digits), round(self.high, digits)]
        return row(name, round(self.median, digits), unit, spread=spread, note=note)


@dataclass(frozen=True, slots=True)
class SeenStream:
    """One stream, its tokens given out by a pacer."""

    arrived: float
    qoe: float
    ttft_s: float
    speed: float  # tokens a second from the first to the last as the server made them; 0 if all came at once
    held: tuple[int, ...]  # tokens that the pacer holds at each of PARTS
    most: int  # that it ever holds
    breaks: int  # times of BREAK_S or more without a token from the server
    noticed: int  # those in which the pacer ran dry

    @classmethod
    def of(cls, program: Program, times: Sequence[float]) -> SeenStream:
        assert program.ttft_s is not None and program.tbt_s is not None
        pacer = Pacer(program.tbt_s, program.at + program.ttft_s)
        given = [pacer.due(at) for at in times]
        begin, whole, made = given[0], given[-1] - given[0], times[-1] - times[0]

        def held(at: float) -> int:
            return bisect_right(times, at) - bisect_right(given, at)

        breaks = [place for place, (a, b) in enumerate(pairwise(times)) if b - a >= BREAK_S]
        late = 1e-6 + program.tbt_s
        return cls(
            program.at,
            qoe_of(program, times),
            times[0] - program.at,
            (len(times) - 1) / made if made > 0 else 0.0,
            tuple(held(begin + part * whole) for part in PARTS),
            max(map(held, times)),
            len(breaks),
            sum(given[place + 1] - given[place] > late for place in breaks),
        )


class StreamFigures:
    """Watches replays."""

    def __init__(self) -> None:
        self._ahead: dict[str, list[float]] = defaultdict(list)  # seconds, by place
        self._tokens = self._late = 0
        self._steps: list[WatchedStep] = []
        self._streams: list[SeenStream] = []

    def told(self) -> dict[str, Any]:
        """Return all that was seen, as JSON."""
        steps, streams = list(map(astuple, self._steps)), list(map(astuple, self._streams))
        return {
            "ahead": self._ahead,
            "tokens": self._tokens,
            "late": self._late,
            "steps": steps,
            "streams": streams,
        }

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> StreamFigures:
        made = cls()
        made._ahead.update(told["ahead"])
        made._tokens, made._late = told["tokens"], told["late"]
        made._steps = [WatchedStep(*one) for one in told["steps"]]
        made._streams = [
            SeenStream(at, qoe, wait, speed, tuple(held), *rest)
            for at, qoe, wait, speed, held, *rest in told["streams"]
        ]
        return made

    def stepped(self, step: WatchedStep) -> None:
        self._steps.append(step)

    def streamed(self, program: Program, times: Sequence[float]) -> None:
        if not times or program.ttft_s is None or program.tbt_s is None:
            return
        due = program.at + program.ttft_s
        for name, place in PLACES.items():
            token = round(place * (len(times) - 1))
            self._ahead[name].append(due + token * program.tbt_s - times[token])
        self._tokens += len(times)
        self._late += sum([at > due + token * program.tbt_s for token, at in enumerate(times)])
        self._streams.append(SeenStream.of(program, times))

    def ahead(self, place: str) -> Spread:
        """Return how many seconds before it was wanted the token at this place of a stream came."""
        return Spread.of(self._ahead[place])

    @property
    def late(self) -> float:
        """The share of tokens that came after they were wanted."""
        return self._late / max(1, self._tokens)

    def contexts(self) -> dict[tuple[int, int], Spread]:
        """Return the tokens of context of batches, by their least and greatest size."""
        found: dict[int, list[float]] = defaultdict(list)
        for step in self._steps:
            found[(step.calls - 1) // WIDTH].append(step.context)
        return {
            (at * WIDTH + 1, (at + 1) * WIDTH): Spread.of(found[at])
            for at in sorted(found)
            if len(found[at]) >= _FEWEST
        }

    @property
    def correlation(self) -> float:
        """Pearson's, of a batch's size and its context; NaN if all batches are alike."""
        calls, contexts = [step.calls for step in self._steps], [step.context for step in self._steps]
        return correlation(calls, contexts) if len({*calls}) > 1 and len({*contexts}) > 1 else nan

    def timelines(self, name: str) -> list[Row]:
        note = f"{self.late:.0%} of all tokens late; streams at {HARD}/s"
        out = []
        for place in PLACES:
            one = self.ahead(place)
            title = f"{place} of a stream before it is wanted, {name}"
            out.append(one.row(title, "s", 2, f"{note}; {one.count} streams"))
        return out

    def batches(self, name: str) -> list[Row]:
        note = "the thesis has 0.997"
        out = [
            row(f"correlation of a batch's size and its context, {name}", round(self.correlation, 3), "", note=note)
        ]
        for (least, most), one in self.contexts().items():
            title = f"context of {least} to {most} calls at once, {name}"
            out.append(one.row(title, "tokens", None, f"{one.count} steps"))
        return out

    def pacer(self, name: str) -> list[Row]:
        streams = self._streams
        out = []
        for place, part in enumerate(PARTS):
            title = f"tokens that the pacer holds at {part:.0%} of a stream, {name}"
            out.append(Spread.of([one.held[place] for one in streams]).row(title, "tokens", None, ""))
        most = Spread.of([one.most for one in streams])
        out.append(most.row(f"most tokens that it holds of a stream, {name}", "tokens", None, ""))
        breaks, noticed = sum(one.breaks for one in streams), sum(one.noticed for one in streams)
        title = f"breaks of the server of {BREAK_S:g} s or more that readers do not notice, {name}"
        note = f"{breaks} breaks in {len(streams)} streams"
        out.append(row(title, round(1 - noticed / breaks, 3) if breaks else None, "of all", note=note))
        return out

    def delivery(self, name: str) -> list[Row]:
        seen: tuple[tuple[str, str, Callable[[SeenStream], float]], ...] = (
            ("QoE of a stream", "", lambda one: one.qoe),
            ("time to first token", "s", lambda one: one.ttft_s),
            ("speed of delivery by the server", "tokens/s", lambda one: one.speed),
        )
        out = []
        for title, unit, of in seen:
            values = [of(one) for one in self._streams]
            note = f"mean {fmean(values):.3g}; {len(values)} streams" if values else ""
            out.append(Spread.of(values).row(f"{title}, {name}", unit, 3, note))
        return out

    def memory(self, name: str) -> list[Row]:
        """While streams arrive: by the time since a cycle began. The burst is its beginning."""
        found: dict[int, list[WatchedStep]] = defaultdict(list)
        until = max([one.arrived for one in self._streams], default=0.0)
        for step in [one for one in self._steps if one.at <= until]:
            found[int(step.at % CYCLE_S / SLICE_S)].append(step)
        out = []
        for at, steps in sorted(found.items()):
            waiting, aside = [one.waiting for one in steps], [one.aside for one in steps]
            note = (
                f"{median([one.calls for one in steps]):g} calls in a step, {median(waiting):g} without a token wait "
                f"(at most {max(waiting)}), {median(aside):g} with tokens are aside (at most {max(aside)})"
            )
            title = f"KV in use from {at * SLICE_S:g} to {(at + 1) * SLICE_S:g} s of a cycle of bursts, {name}"
            out.append(Spread.of([one.kv for one in steps]).row(title, "of all", 2, note))
        return out


FIGURES: dict[str, Callable[[StreamFigures, str], list[Row]]] = {
    "timelines": StreamFigures.timelines,
    "batches": StreamFigures.batches,
    "pacer": StreamFigures.pacer,
    "delivery": StreamFigures.delivery,
    "memory": StreamFigures.memory,
}
