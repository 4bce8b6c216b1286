"""Choose the requests to serve, by the QoE that each would have (Andes, algorithm 1).

`Readers` keeps all requests of one engine as columns of numbers. `qoe_at` and `delivered` are
`ramify.serving.qoe.Reading`'s methods of these names over whole columns; tests compare.

`pack` solves the knapsack of equation 5 by priority, and `batch_sizes` names the batch sizes that are worth a try.
`Refiner` says which of the chosen changes are worth their overhead (§4.3): a prefill keeps every running stream
waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from ramify.serving.policy.types import RequestId, RequestView, State, StepModel
from ramify.serving.qoe import PERFECT, READING_TBT_S, Reading, usual_ttft_s

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


Places = npt.NDArray[np.intp]


class Objective(StrEnum):
    AVERAGE = "average"  # the mean QoE
    MAX_MIN = "max-min"  # the least QoE (equation 7)
    PERFECT = "perfect"  # how many have a perfect QoE (equation 8)


def gains(objective: Objective, served: Floats, waits: Floats, current: Floats) -> Floats:
    """Return the gain of serving each request: Q_serve, Q_wait and Q_current are their QoE."""
    match objective:
        case Objective.AVERAGE:
            more: Floats = served - waits
            return more
        case Objective.MAX_MIN:
            least: Floats = np.maximum(current.min(initial=1.0) - waits, 0.0)
            return least
        case Objective.PERFECT:
            good: Floats = (served >= PERFECT).astype(float) - (waits >= PERFECT)
            return np.where(current >= PERFECT, good, 0.0)


@dataclass(frozen=True, slots=True)
class Packed:
    chosen: Places  # places of the requests to serve, best first
    order: Places  # places of all requests, by priority
    gain: Floats  # of each request
    value: float  # sum of the gains of the chosen


def pack(gain: Floats, context: Floats, memory: float, batch: int, order_by: Floats) -> Packed:
    """Pack requests by gain for each token of context until one does not fit (algorithm 1).

    `order_by` breaks ties: the smaller goes first.
    """
    order = np.lexsort((order_by, -gain / np.maximum(1.0, context)))
    fits = int(np.searchsorted(np.cumsum(context[order]), memory, side="right"))
    chosen = order[: min(batch, fits)]
    return Packed(chosen, order, gain, float(gain[chosen].sum()))


def batch_sizes(
    context: Floats, memory: float, slots: int, step: StepModel, tightest_s: float, most: int
) -> list[int]:
    """Return at most `most` batch sizes from B_min to B_max, the largest first.

    B_max is as many as fit, the shortest contexts first. B_min is the largest batch that is still faster than the
    fastest reader: a smaller one makes tokens that nobody can read yet.
    """
    sizes = np.sort(context)
    largest = min(slots, len(sizes), int(np.searchsorted(np.cumsum(sizes), memory, side="right")))
    mean = float(context.mean()) if len(context) else 0.0
    spare_ms = tightest_s * 1000 - step.base_ms
    each_ms = step.per_seq_ms + step.per_kctx_ms * mean / 1000
    smallest = largest if each_ms <= 0 else int(max(1.0, min(float(largest), spare_ms / each_ms)))
    if largest <= smallest:
        return [max(1, largest)]
    return sorted({round(float(b)) for b in np.linspace(smallest, largest, most)}, reverse=True)


def best_packing(sizes: list[int], packed: Callable[[int], Packed]) -> Packed:
    """Return the packing of the batch size with the greatest value; of equals, the larger batch."""
    return max(map(packed, sizes), key=lambda one: one.value)


_OVERHEADS_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


@dataclass(frozen=True, slots=True)
class Loss:
    """The QoE that all running streams lose while no token comes, by seconds."""

    points: tuple[float, ...]

    @classmethod
    def of(cls, running: Columns, now: float) -> Loss:
        """Compute the loss at a few overheads; `at` interpolates between them."""
        left = running.qoe_at(now + np.array(_OVERHEADS_S)[:, None]).sum(axis=1).tolist()
        return cls(tuple([left[0] - after for after in left]))

    def at(self, overhead_s: float) -> float:
        """Return the loss of so many seconds. Beyond the last overhead it grows no more."""
        above = bisect_right(_OVERHEADS_S, overhead_s)
        if above == len(_OVERHEADS_S):
            return self.points[-1]
        low, high, part = self.points[above - 1], self.points[above], _OVERHEADS_S[above - 1]
        return low + (high - low) * (overhead_s - part) / (_OVERHEADS_S[above] - part)


class Refiner:
    """Commits changes in order of priority, until one gains no more than it costs. What remains is cancelled.

    `loss`: None where the overhead does not matter, and nothing is cancelled.
    """

    def __init__(self, loss: Loss | None) -> None:
        self._loss = loss
        self._spent_s, self._lost = 0.0, 0.0

    def commits(self, gain: float, overhead_s: float) -> bool:
        """Is the gain more than what the streams lose by this overhead, after what was committed before?"""
        if self._loss is None or overhead_s <= 0:
            return True
        lost = self._loss.at(self._spent_s + overhead_s)
        if gain <= lost - self._lost:
            return False
        self._spent_s, self._lost = self._spent_s + overhead_s, lost
        return True
