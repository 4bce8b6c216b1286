"""An upper bound of goodput: a linear programme over GPU time, which no scheduler can exceed on the same workload.

Time is cut into bins. A program is taken by a share x between 0 and 1. Each of its stages is a piece of GPU time
that must be spent in the bins between the earliest time that it could begin and the latest that it could end, which
leaves the other stages the time that they need alone on the engine. All pieces of a bin share the bin's length. The
worth of the shares is maximised.

It is an upper bound because each relaxation favours the scheduler: shares may be fractions, the future is known, a
bin that a window only touches may be used as a whole, a token costs what it does in a full batch, and a single call
runs at the speed of an otherwise empty engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from benchmarks.replay.errors import NoBound
from benchmarks.replay.types import Call, Program, Setting
from ramify.serving.policy.cost_model import decode_gpu_s, prefill_s
from ramify.serving.policy.types import SloClass, StepModel

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True, slots=True)
class Piece:
    """GPU time that must lie between `begin` and `end`."""

    gpu_s: float
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Item:
    """What is taken by one share: it is worth `worth` times the share, and costs the share of each piece.

    `after`: index of an item whose share must be at least as large.
    """

    worth: float
    pieces: tuple[Piece, ...]
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    value: float  # the most that can be met, in programs or tokens
    total: float  # all programs or tokens

    @property
    def share(self) -> float:
        return self.value / self.total if self.total else 1.0


def request_bound(programs: Sequence[Program], setting: Setting, bin_s: float = 1.0) -> Bound:
    """Return the most programs that can be met of those that arrive in the window. The others need not be served."""
    begin, end = setting.window
    counted = [program for program in programs if begin <= program.at < end]
    known: set[int] = set()
    items = [Item(1.0, pieces) for program in counted if (pieces := _pieces(program, setting, known))]
    return Bound(solve(items, setting.replicas, bin_s), float(len(counted)))


def chosen(programs: Sequence[Program], setting: Setting, capacity: float, bin_s: float = 1.0) -> list[Program]:
    """Return the programs of which the linear programme serves more than half, with a share `capacity` of the
    engines.

    Every program of the run counts. A clairvoyant that calculates as the bound does would accept these.
    """
    known: set[int] = set()
    able = [(one, pieces) for one in programs if (pieces := _pieces(one, setting, known))]
    _, shares = _solved([Item(1.0, pieces) for _, pieces in able], setting.replicas * capacity, bin_s)
    return [one for (one, _), share in zip(able, shares, strict=True) if share > 0.5]


def token_bound(programs: Sequence[Program], setting: Setting, bin_s: float = 1.0) -> Bound:
    """Return the most tokens that can be met, as the thesis counts them.

    Each token on schedule counts of a latency-sensitive program, and prompts and answers of another if it is met.
    """
    begin, end = setting.window
    counted = [program for program in programs if begin <= program.at < end]
    items: list[Item] = []
    total = 0
    known: set[int] = set()
    for program in counted:
        streams = program.kind is SloClass.LATENCY
        worth = sum(call.output if streams else call.prompt + call.output for call in program.calls)
        total += worth
        pieces = _pieces(program, setting, known)
        if streams and len(pieces) == 2:  # its tokens count one by one: the first, and any share of the rest after it
            items.append(Item(1.0, pieces[:1]))
            items.append(Item(worth - 1.0, pieces[1:], after=len(items) - 1))
        elif pieces:
            items.append(Item(float(worth), pieces))
    return Bound(solve(items, setting.replicas, bin_s), float(total))


def _pieces(program: Program, setting: Setting, known: set[int]) -> tuple[Piece, ...]:
    """Return the program's stages as pieces; none if it could not be met even alone. A stream is cut after its
    first token.
    """
    if program.kind is SloClass.LATENCY:
        return _stream(program, setting, known)
    alone = [max(_alone_s(call, setting.step) for call in stage.calls) for stage in program.stages]
    begin, pieces = program.at, []
    left = sum(alone) + sum(stage.tool_s for stage in program.stages[1:])
    for number, stage in enumerate(program.stages):
        begin += stage.tool_s if number else 0.0
        left -= alone[number] + (stage.tool_s if number else 0.0)
        gpu_s = sum(_gpu_s(call, setting, known) for call in stage.calls)
        pieces.append(Piece(gpu_s, begin, program.due - left))
        if begin + alone[number] > program.due - left + 1e-9:
            return ()
        begin += alone[number]
    return tuple(pieces)


def _stream(program: Program, setting: Setting, known: set[int]) -> tuple[Piece, ...]:
    call, step = program.calls[0], setting.step
    first_by = program.at + (program.ttft_s or 0.0)
    own = prefill_s(step, call.uncached(known))
    if program.at + own > first_by:
        return ()
    first = Piece(own + decode_gpu_s(step, setting.slots, call.prompt, 1), program.at, first_by)
    if call.output < 2:
        return (first,)
    rest = decode_gpu_s(step, setting.slots, call.prompt + 1, call.output - 1)
    return first, Piece(rest, program.at + own, program.due)


def _gpu_s(call: Call, setting: Setting, known: set[int]) -> float:
    """Return the GPU time of a call in a full batch."""
    decode = decode_gpu_s(setting.step, setting.slots, call.prompt, call.output)
    return prefill_s(setting.step, call.uncached(known)) + decode


def _alone_s(call: Call, step: StepModel) -> float:
    """Return the wall time of a call alone on the engine, with its whole prompt in the prefix cache."""
    return call.output * step.step_ms(1, call.prompt + call.output / 2) / 1000


def solve(items: Sequence[Item], capacity: float, bin_s: float) -> float:
    """Return the value of the linear programme. Raises NoBound if HiGHS finds no optimum."""
    return _solved(items, capacity, bin_s)[0]


def _solved(items: Sequence[Item], capacity: float, bin_s: float) -> tuple[float, list[float]]:
    """Return the value, and the share of each item.

    The variables are a share for each item, then flows of GPU time. Bins are the leaves of a binary tree. A piece
    sends its time to the few subtrees that make up its window, and each inner node passes it on to its children. So
    a window of n bins costs 2 log n variables instead of n.
    """
    import numpy as np
    from scipy.optimize import linprog

    if not items:
        return 0.0, []
    begin = min(piece.begin for item in items for piece in item.pieces)
    until = max(piece.end for item in items for piece in item.pieces)
    leaves = 1 << max(0, ceil(until / bin_s + 1 - begin // bin_s) - 1).bit_length()
    equal, most = _Rows(), _Rows()
    columns = len(items)
    # Row v of `equal` is the inner node v (its children are 2v and 2v + 1); row l of `most` is a leaf, and its limit.
    equal.count, most.count = leaves, leaves
    for child in range(2, 2 * leaves):
        equal.put(child // 2, columns, -1.0)
        _enters(child, leaves, columns, equal, most)
        columns += 1
    for share, item in enumerate(items):
        if item.after is not None:
            row = most.next()
            most.put(row, share, 1.0)
            most.put(row, item.after, -1.0)
        for piece in item.pieces:
            row = equal.next()
            equal.put(row, share, -1.0)
            first, last = (int(at // bin_s - begin // bin_s) for at in (piece.begin, piece.end))
            for node in _cover(first, last, leaves):
                equal.put(row, columns, 1.0 / piece.gpu_s)
                _enters(node, leaves, columns, equal, most)
                columns += 1
    cost, upper, limits = np.zeros(columns), np.full(columns, np.inf), np.zeros(most.count)
    cost[: len(items)] = [-item.worth for item in items]
    upper[: len(items)] = 1.0
    limits[:leaves] = bin_s * capacity
    found = linprog(
        cost,
        A_ub=most.matrix(columns),
        b_ub=limits,
        A_eq=equal.matrix(columns),
        b_eq=np.zeros(equal.count),
        bounds=np.stack([np.zeros(columns), upper], axis=1),
        method="highs",
    )
    if found.status != 0:
        raise NoBound(f"the bound's linear programme was not solved: {found.message}")
    return float(-found.fun), [float(share) for share in found.x[: len(items)]]


def _enters(node: int, leaves: int, column: int, equal: _Rows, most: _Rows) -> None:
    if node < leaves:
        equal.put(node, column, 1.0)
    else:
        most.put(node - leaves, column, 1.0)


def _cover(first: int, last: int, leaves: int) -> Iterator[int]:
    """Yield the fewest nodes whose leaves are `first` to `last`."""
    low, high = first + leaves, last + leaves + 1
    while low < high:
        if low & 1:
            yield low
            low += 1
        if high & 1:
            high -= 1
            yield high
        low, high = low // 2, high // 2


class _Rows:
    """A sparse matrix that grows."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count - 1

    def put(self, row: int, column: int, value: float) -> None:
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)

    def matrix(self, columns: int) -> csr_matrix:
        from scipy.sparse import csr_matrix

        return csr_matrix((self.values, (self.rows, self.columns)), shape=(self.count, columns))
