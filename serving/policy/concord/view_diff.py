"""What has changed between two lists of views."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter, is_not

from ramify.serving.policy.types import RequestId, RequestView

_FIRST_LOOK, _LONGEST_LOOK = 32, 128
_FEW = 64  # differences, and a sixteenth of the list: beyond them going through all of it is quicker

_AHEAD = 16

_ID = attrgetter("id")


def changes(
    old: Sequence[RequestView], new: Sequence[RequestView], most: int | None = None
) -> tuple[list[RequestView], set[RequestId]] | None:
    """What is in `new` and may not have been in `old`, and the ids of what is not in `new` any more; None where they
    differ in more than `most` places. No call stands twice in a list.

    A host's list is the one that it showed before, but for a few calls that came, went or moved on. Stretches that
    are alike are compared as lists, which looks at addresses first and takes a fraction of the time of asking each
    view for its id. Views that are equal are taken for the same.
    """
    i, j, look = 0, 0, _FIRST_LOOK
    steps = _FEW + len(new) // 16 if most is None else most
    left: list[RequestView] = []
    come: list[RequestView] = []
    while i < len(old) and j < len(new):
        both = min(look, len(old) - i, len(new) - j)
        aligned, was, now = True, old[i : i + both], new[j : j + both]
        for at in () if was == now else compress(range(both), map(is_not, was, now)):
            steps -= 1
            if steps < 0:
                return None
            gone, here = old[i + at], new[j + at]
            if gone.id == here.id:  # replaced where it stood
                left.append(gone)
                come.append(here)
                continue
            i, j, aligned, look = i + at, j + at, False, _FIRST_LOOK
            aside, along = _meet(old, i, new, j)
            left += old[i : i + aside]
            come += new[j : j + along]
            i, j = i + aside, j + along
            break
        if aligned:
            i, j, look = i + both, j + both, min(2 * look, _LONGEST_LOOK)
    left += old[i:]
    come += new[j:]
    return come, set(map(_ID, left)).difference(map(_ID, come))


def _meet(old: Sequence[RequestView], i: int, new: Sequence[RequestView], j: int) -> tuple[int, int]:
    """How many to pass over in each until they are alike again."""
    gone, here = old[i], new[j]
    for k, (ahead, beyond) in enumerate(zip(old[i + 1 : i + _AHEAD], new[j + 1 : j + _AHEAD], strict=False), 1):
        if ahead is here:
            return k, 0
        if beyond is gone:
            return 0, k
    return 1, 1
