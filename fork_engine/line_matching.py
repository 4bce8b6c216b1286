"""Equal lines of two texts, found with bounded work.

Files come from agents, so the worst input is the usual one to expect: shuffled or repeated lines take quadratic
time in `difflib` and in Myers' algorithm. This module counts its work and stops looking when a budget that is linear
in the number of lines is spent. What is left then counts as changed: the result is correct, and coarser.

A region between two matches is searched in this order: equal lines at both ends; Myers' greedy algorithm (E. Myers,
"An O(ND) Difference Algorithm and Its Variations", 1986) over the lines that both sides have, up to `MOST_EDITS`;
lines that occur once on each side, as in Bram Cohen's patience diff, which part the region into smaller ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

MOST_EDITS = 512
"""Edits after which Myers' algorithm gives up on a region. Its time grows with their square."""
LEAST_WORK, WORK_PER_LINE = 1_000_000, 8


class Match(NamedTuple):
    """`size` equal lines, from `before` in the one text and from `after` in the other."""

    before: int
    after: int
    size: int


class WorkSpent(Exception):
    """The budget is spent. Never leaves this module."""


class LineMatcher:
    """Matches two sequences of lines. The arguments and `get_matching_blocks` are those of `difflib.SequenceMatcher`,
    so that `merge3` takes it instead.
    """

    def __init__(self, _junk: None, before: Sequence[T], after: Sequence[T]) -> None:
        names: dict[T, int] = {}
        self._before = [names.setdefault(line, len(names)) for line in before]
        self._after = [names.setdefault(line, len(names)) for line in after]
        self._found: list[Match] = []
        self._pending: list[tuple[int, int, int, int]] = []
        self.budget = LEAST_WORK + WORK_PER_LINE * (len(before) + len(after))
        """Comparisons that may be made."""
        self.work = 0
        """Comparisons that were made: at most the budget, plus the lines of one region."""

    def get_matching_blocks(self) -> list[tuple[int, int, int]]:
        """Maximal runs of equal lines, ascending on both sides; the last one is empty, at the ends."""
        self._found.clear()
        self.work = 0
        self._pending = [(0, len(self._before), 0, len(self._after))]
        try:
            while self._pending:
                self._search(*self._pending.pop())
        except WorkSpent:
            self._pending.clear()
        return [*_joined(sorted(self._found)), Match(len(self._before), len(self._after), 0)]

    def _spend(self, comparisons: int) -> None:
        self.work += comparisons
        if self.work > self.budget:
            raise WorkSpent

    def _search(self, low: int, high: int, other_low: int, other_high: int) -> None:
        """Find matches in before[low:high] and after[other_low:other_high]."""
        before, after = self._before, self._after
        start, other_start = low, other_low
        while low < high and other_low < other_high and before[low] == after[other_low]:
            low, other_low = low + 1, other_low + 1
        end = high
        while low < high and other_low < other_high and before[high - 1] == after[other_high - 1]:
            high, other_high = high - 1, other_high - 1
        self._keep(start, other_start, low - start)
        self._keep(high, other_high, end - high)
        self._spend(low - start + end - high)
        if low == high or other_low == other_high:
            return
        mine, theirs = range(low, high), range(other_low, other_high)
        self._spend(len(mine) + len(theirs))
        common = {before[at] for at in mine} & {after[at] for at in theirs}
        left = [at for at in mine if before[at] in common]
        right = [at for at in theirs if after[at] in common]
        if common and not self._greedy(left, right):
            self._part(left, right, (low, high, other_low, other_high))

    def _keep(self, before: int, after: int, size: int) -> None:
        if size:
            self._found.append(Match(before, after, size))

    def _greedy(self, left: Sequence[int], right: Sequence[int]) -> bool:
        """Match by Myers' algorithm. `left` and `right`: places of lines. False, with nothing kept, if the two differ
        in more than `MOST_EDITS` lines."""
        before, after = [self._before[at] for at in left], [self._after[at] for at in right]
        rows, columns = len(before), len(after)
        if abs(rows - columns) > MOST_EDITS:
            return False
        furthest, history = {1: 0}, []
        for edits in range(MOST_EDITS + 1):
            history.append(dict(furthest))
            for diagonal in range(-edits, edits + 1, 2):
                down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
                row = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
                first = row
                while row < rows and row - diagonal < columns and before[row] == after[row - diagonal]:
                    row += 1
                self._spend(row - first + 1)
                furthest[diagonal] = row
                if row >= rows and row - diagonal >= columns:
                    self._trace(history, left, right)
                    return True
        return False

    def _trace(self, history: Sequence[dict[int, int]], left: Sequence[int], right: Sequence[int]) -> None:
        """Go back from the end along the edits, and keep the equal lines between them."""
        row, column = len(left), len(right)
        for edits in range(len(history) - 1, -1, -1):
            furthest, diagonal = history[edits], row - column
            down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
            came_from = diagonal + 1 if down else diagonal - 1
            row_before = furthest[came_from] if edits else 0
            column_before = row_before - came_from if edits else 0
            while row > row_before and column > column_before:
                row, column = row - 1, column - 1
                self._keep(left[row], right[column], 1)
            row, column = row_before, column_before

    def _part(self, left: Sequence[int], right: Sequence[int], region: tuple[int, int, int, int]) -> None:
        """Part the region at lines that occur once on each side, in the longest order that both sides share."""
        self._spend(len(left) + len(right))
        once = Counter(self._before[at] for at in left)
        other_once = Counter(self._after[at] for at in right)
        place = {self._after[at]: at for at in right if other_once[self._after[at]] == 1}
        pairs = [
            (at, place[self._before[at]]) for at in left if once[self._before[at]] == 1 and self._before[at] in place
        ]
        low, high, other_low, other_high = region
        anchors = _ascending(pairs)
        for at, other in anchors:
            self._keep(at, other, 1)
            self._pending.append((low, at, other_low, other))
            low, other_low = at + 1, other + 1
        if anchors:
            self._pending.append((low, high, other_low, other_high))


def _ascending(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence that ascends on both sides, of pairs that ascend on the first (patience sorting)."""
    tops: list[int] = []  # the least last value of a subsequence of each length
    places: list[int] = []
    before: list[int] = []
    for at, (_, value) in enumerate(pairs):
        length = bisect_left(tops, value)
        before.append(places[length - 1] if length else -1)
        tops[length : length + 1] = [value]
        places[length : length + 1] = [at]
    found, at = [], places[-1] if places else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def _joined(matches: Sequence[Match]) -> list[Match]:
    joined: list[Match] = []
    for match in matches:
        last = joined[-1] if joined else None
        if last and last.before + last.size == match.before and last.after + last.size == match.after:
            joined[-1] = Match(last.before, last.after, last.size + match.size)
        else:
            joined.append(match)
    return joined
