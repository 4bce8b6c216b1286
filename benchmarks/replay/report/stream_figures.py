"""`StreamFigures`: what two figures of the Andes thesis show, from watched replays.

Figure 2.10: when each token of a stream came, against when its reader wanted it. Figure A.1: how many tokens of
context a batch of so many calls has in all, which lets a policy tell a step's time from the batch size alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import correlation, median, quantiles
from typing import Any

from benchmarks.replay.types import Program

PLACES = {"the first token": 0.0, "the middle one": 0.5, "the last": 1.0}  # of a stream
WIDTH = 4  # batch sizes from 1 to 4 are shown together, then from 5 to 8, …
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
        """Of two values at least."""
        tenths = quantiles(values, n=10, method="inclusive")
        return cls(tenths[0], median(values), tenths[-1], len(values))


class StreamFigures:
    """Watches replays."""

    def __init__(self) -> None:
        self._ahead: dict[str, list[float]] = defaultdict(list)  # seconds, by place
        self._tokens = self._late = 0
        self._batches: list[tuple[int, int]] = []  # calls and tokens of context, of each step

    def told(self) -> dict[str, Any]:
        """Return all that was seen, as JSON."""
        return {"ahead": self._ahead, "tokens": self._tokens, "late": self._late, "batches": self._batches}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> StreamFigures:
        made = cls()
        made._ahead.update(told["ahead"])
        made._tokens, made._late, made._batches = told["tokens"], told["late"], list(map(tuple, told["batches"]))
        return made

    def stepped(self, calls: int, context: int) -> None:
        """A step of so many calls, with so many tokens in KV."""
        if calls:
            self._batches.append((calls, context))

    def streamed(self, program: Program, times: Sequence[float]) -> None:
        """A stream has ended. Its tokens came at these times."""
        if not times or program.ttft_s is None or program.tbt_s is None:
            return
        due = program.at + program.ttft_s
        for name, place in PLACES.items():
            token = round(place * (len(times) - 1))
            self._ahead[name].append(due + token * program.tbt_s - times[token])
        self._tokens += len(times)
        self._late += sum([at > due + token * program.tbt_s for token, at in enumerate(times)])

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
        for calls, context in self._batches:
            found[(calls - 1) // WIDTH].append(context)
        return {
            (at * WIDTH + 1, (at + 1) * WIDTH): Spread.of(found[at])
            for at in sorted(found)
            if len(found[at]) >= _FEWEST
        }

    @property
    def correlation(self) -> float:
        """Pearson's, of a batch's size and its context."""
        return correlation(*zip(*self._batches, strict=True))
