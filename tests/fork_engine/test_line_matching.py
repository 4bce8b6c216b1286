"""Matches are right and, for small changes, as many as possible; the work is bounded on hostile texts."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.fork_engine.line_matching import LEAST_WORK, WORK_PER_LINE, LineMatcher

LINES = st.lists(st.sampled_from("abcde"), max_size=24)


def longest_common(before: Sequence[str], after: Sequence[str]) -> int:
    row = [0] * (len(after) + 1)
    for line in before:
        above = row[:]
        for at, other in enumerate(after):
            row[at + 1] = above[at] + 1 if line == other else max(row[at], above[at + 1])
    return row[-1]


@given(LINES, LINES)
def test_matches_ascend_and_are_as_many_as_possible(before: list[str], after: list[str]) -> None:
    *blocks, last = LineMatcher(None, before, after).get_matching_blocks()
    assert last == (len(before), len(after), 0)
    at = other = 0
    for low, other_low, size in blocks:
        assert low >= at
        assert other_low >= other
        assert size > 0
        assert before[low : low + size] == after[other_low : other_low + size]
        at, other = low + size, other_low + size
    assert sum(size for _, _, size in blocks) == longest_common(before, after)


def shuffled(count: int) -> tuple[list[str], list[str]]:
    lines = [f"{n}" for n in range(count)]
    return lines, random.Random(0).sample(lines, count)


def repeated(count: int) -> tuple[list[str], list[str]]:
    chance = random.Random(0)
    return [chance.choice("ab") for _ in range(count)], [chance.choice("ab") for _ in range(count)]


def nested(count: int) -> tuple[list[str], list[str]]:
    """Each line becomes the only one of its kind once the region is parted at the one before it."""
    before = ["x0"] + [line for n in range(count // 2) for line in (f"x{n + 1}", f"x{n}")]
    return before, [f"y{n}" for n in range(600)] + before[::-1]


@pytest.mark.parametrize("texts", [shuffled, repeated, nested])
@pytest.mark.parametrize("count", [40_000, 160_000])
def test_work_is_linear_on_hostile_texts(texts: object, count: int) -> None:
    before, after = texts(count)  # type: ignore[operator]
    matcher = LineMatcher(None, before, after)
    matcher.get_matching_blocks()
    lines = len(before) + len(after)
    assert matcher.work <= LEAST_WORK + (WORK_PER_LINE + 1) * lines


def test_changed_lines_between_repeated_ones_keep_them() -> None:
    before = [line for n in range(4000) for line in (f"old {n}", "}")]
    after = [line for n in range(4000) for line in (f"new {n}", "}")]
    *blocks, _ = LineMatcher(None, before, after).get_matching_blocks()
    assert len(blocks) == 4000


MERGE = """
import random
from ramify.fork_engine.merge.files import merge_lines
from ramify.fork_engine.types import Change, ChangeKind, Entry, EntryKind
from ramify.inspect.patch import file_patch
lines = [b"%d\\n" % n for n in range(60_000)]
base, ours, theirs = (b"".join(random.Random(seed).sample(lines, len(lines))) for seed in range(3))
assert merge_lines(base, ours, theirs) is None
assert merge_lines(base, ours, theirs, union=True)
entry = Entry(EntryKind.FILE, 0o644)
patch = file_patch(Change("f", ChangeKind.MODIFIED, entry, entry), base, ours)
assert patch.added == patch.removed > 0
"""


def test_shuffled_lines_are_merged_and_compared_within_bounded_processor_time() -> None:
    """`difflib` needs 40 s for these, and a quadratic algorithm ends by SIGXCPU."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", MERGE], preexec_fn=limit, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
