"""`Readers`: all requests of one engine as columns of numbers, and the QoE that each would have.

`qoe_at` and `delivered` are `ramify.serving.qoe.Reading`'s methods of these names over whole columns; tests compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.serving.policy.types import RequestId, RequestView, State
from ramify.serving.qoe import READING_TBT_S, Reading, usual_ttft_s

Floats = npt.NDArray[np.float64]
_COLUMNS = 9
_NOTHING = 1e-9  # a delay below this, for each token, is a rounding error


@dataclass(frozen=True, slots=True)
class Columns:
    """Requests as columns, in one order. Times in seconds, lengths in tokens."""

    first_due: Floats
    tbt_s: Floats
    tokens: Floats  # delivered
    read_at: Floats
    delay_s: Floats
    context: Floats  # l_i: prompt and answer so far
    to_prefill: Floats  # tokens to compute before its next token; 0 while it holds KV
    held: Floats  # tokens of KV that it holds
    arrived: Floats

    def qoe_at(self, at: float | Floats) -> Floats:
        """Return the QoE of each at the time `at` if no more token comes until then (Q_wait).

        A column of times gives a row for each.
        """
        tbt, tokens, first = self.tbt_s, self.tokens, self.first_due
        unread = np.minimum(tokens, np.ceil(np.maximum(0.0, (self.read_at - at) / tbt)))
        read = tokens - unread
        due = np.maximum(0.0, np.floor((at - first) / tbt) + 1)
        missing = np.maximum(0.0, due - read)
        delay = self.delay_s - unread * (self.read_at - first - (tokens - 1) * tbt)
        delay = delay + missing * ((at - first) - tbt * (read + due - 1) / 2)
        last = np.where(missing > 0, at, self.read_at - unread * tbt)
        count = read + missing
        whole = count * ((last - first) - tbt * (count - 1) / 2)
        share = np.divide(delay, whole, out=np.ones_like(delay), where=whole > 0)
        return np.where(delay <= _NOTHING * np.maximum(1.0, count), 1.0, np.minimum(1.0, np.maximum(0.0, 1 - share)))

    def served(self, now: float, until: float, start_s: Floats, every_s: float) -> Columns:
        """Return the columns at `until` if each gets a token at `now + start_s` and then one each `every_s`."""
        at, tbt = now + start_s, self.tbt_s
        count = np.maximum(0.0, np.floor((until - at) / every_s) + 1)
        first = np.maximum(at, np.where(self.tokens > 0, self.read_at + tbt, self.first_due))
        late = every_s - tbt
        waits = np.ceil(np.divide(first - at, late, out=np.full_like(at, np.inf), where=late > 0))
        steady = np.minimum(count, waits)
        rest = count - steady
        read = steady * first + tbt * steady * (steady - 1) / 2 + rest * (at + every_s * (steady + count - 1) / 2)
        last = np.maximum(at + (count - 1) * every_s, first + (count - 1) * tbt)
        due = count * (self.first_due + tbt * (2 * self.tokens + count - 1) / 2)
        delay = np.maximum(0.0, self.delay_s + read - due)
        return Columns(
            self.first_due,
            tbt,
            self.tokens + count,
            np.where(count > 0, last, self.read_at),
            np.where(count > 0, delay, self.delay_s),
            self.context,
            self.to_prefill,
            self.held,
            self.arrived,
        )

    def ahead_s(self, now: float) -> Floats:
        """Return for how many seconds each reader has enough to read."""
        return np.where(self.tokens > 0, self.read_at + self.tbt_s, self.first_due) - now


class Readers:
    """Keeps the columns from decision to decision: a row is computed once for each view object."""

    def __init__(self) -> None:
        self._table = np.zeros((_COLUMNS, 64))  # a call in each column: what is taken of it is contiguous
        self._places: dict[RequestId, int] = {}
        self._views: list[RequestView | None] = [None] * 64

    def columns(self, calls: Sequence[RequestView]) -> Columns:
        """Return the columns of these calls, in their order. Calls that are not among them are forgotten."""
        if len(self._places) > 2 * len(calls) + 64:
            kept = {call.id for call in calls}
            for id_ in [id_ for id_ in self._places if id_ not in kept]:
                self._views[self._places.pop(id_)] = None
            self._pack()
        known, views = self._places.get, self._views
        rows = [
            place if (place := known(call.id)) is not None and views[place] is call else self._write(call, place)
            for call in calls
        ]
        return Columns(*self._table.take(np.array(rows, dtype=np.intp), axis=1))

    def _write(self, call: RequestView, place: int | None) -> int:
        if place is None:
            place = self._places[call.id] = len(self._places)
            if place >= len(self._views):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
                self._views += [None] * len(self._views)  # the same list: `columns` reads it meanwhile
        reading = call.reading or _on_time(call)
        waits = call.state is State.WAITING or call.state is State.PREEMPTED
        context = call.prompt_tokens + call.generated
        self._table[:, place] = (
            reading.first_due,
            reading.tbt_s,
            reading.tokens,
            reading.read_at,
            reading.delay_s,
            context,
            call.to_prefill if waits else max(0, call.prompt_tokens - call.computed),
            0 if waits else max(call.computed, context),
            call.arrived,
        )
        self._views[place] = call
        return place

    def _pack(self) -> None:
        """Close the gaps that forgotten calls left."""
        order = list(self._places.values())
        self._table[:, : len(order)] = self._table[:, order]
        kept = [self._views[place] for place in order]
        self._views[:] = kept + [None] * (len(self._views) - len(kept))
        self._places = {id_: at for at, id_ in enumerate(self._places)}


def _on_time(call: RequestView) -> Reading:
    """Return the reading of a call that is no stream: the usual reader, to whom every token came in time."""
    first = call.arrived + usual_ttft_s(call.prompt_tokens)
    last = first + (call.generated - 1) * READING_TBT_S if call.generated else 0.0
    return Reading(first, READING_TBT_S, call.generated, last)
