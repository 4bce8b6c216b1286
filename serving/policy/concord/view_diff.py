"""What has changed between two lists of views."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter, is_not

from ramify.serving.policy.types import RequestId, RequestView

_FIRST_STRETCH, _LONGEST_STRETCH = 32, 128  # views that are compared at once
_FEW = 64  # differences, beside a sixteenth of the list: with more, a pass over the whole list is faster
_AHEAD = 16  # views to look ahead for the place where the lists agree again

_ID = attrgetter("id")


def view_changes(
    old: Sequence[RequestView], new: Sequence[RequestView], most: int | None = None
) -> tuple[list[RequestView], set[RequestId]] | None:
    """Return the views of `new` that may not be in `old`, and the ids that are not in `new` any more.

    Returns None if the lists differ in more than `most` places. No call may be twice in a list.

    From one decision to the next a host's list differs by a few calls. So equal stretches are compared as lists,
    which compares addresses first, and takes a fraction of the time of asking each view for its id. Equal views
    count as the same.
    """
    i, j, stretch = 0, 0, _FIRST_STRETCH
    budget = _FEW + len(new) // 16 if most is None else most
    left: list[RequestView] = []
    come: list[RequestView] = []
    while i < len(old) and j < len(new):
        both = min(stretch, len(old) - i, len(new) - j)
        aligned, was, now = True, old[i : i + both], new[j : j + both]
        for at in () if was == now else compress(range(both), map(is_not, was, now)):
            budget -= 1
            if budget < 0:
                return None
            gone, here = old[i + at], new[j + at]
            if gone.id == here.id:  # replaced in its place
                left.append(gone)
                come.append(here)
                continue
            i, j, aligned, stretch = i + at, j + at, False, _FIRST_STRETCH
            skip_old, skip_new = _realign(old, i, new, j)
            left += old[i : i + skip_old]
            come += new[j : j + skip_new]
            i, j = i + skip_old, j + skip_new
            break
        if aligned:
            i, j, stretch = i + both, j + both, min(2 * stretch, _LONGEST_STRETCH)
    left += old[i:]
    come += new[j:]
    return come, set(map(_ID, left)).difference(map(_ID, come))


def _realign(old: Sequence[RequestView], i: int, new: Sequence[RequestView], j: int) -> tuple[int, int]:
    """Return how many views to skip in each list until they agree again."""
    gone, here = old[i], new[j]
    for k, (ahead, beyond) in enumerate(zip(old[i + 1 : i + _AHEAD], new[j + 1 : j + _AHEAD], strict=False), 1):
        if ahead is here:
            return k, 0
        if beyond is gone:
            return 0, k
    return 1, 1
