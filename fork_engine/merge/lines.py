"""Merging texts by line."""

from __future__ import annotations

from collections.abc import Sequence

from merge3 import Merge3

MOST_BYTES = 4 << 20
"""Of each side: beyond it a merge by line takes seconds, and nobody wrote the file by hand."""


def merge_lines(base: bytes, ours: bytes, theirs: bytes, *, union: bool = False) -> bytes | None:
    """The clean merge by line; None where there is none: a conflict, no UTF-8, or too large. Lines end as in bytes,
    by LF, CRLF or CR, and keep their ends. With `union`, where both changed the same lines it holds ours and then
    theirs."""
    if max(map(len, (base, ours, theirs))) > MOST_BYTES or b"\0" in base + ours + theirs:
        return None
    try:
        for side in (base, ours, theirs):
            side.decode("utf-8")
    except UnicodeDecodeError:
        return None
    before, mine, yours = (side.splitlines(True) for side in (base, ours, theirs))
    merged: list[bytes] = []
    for group in Merge3(before, mine, yours).merge_groups():
        if group[0] != "conflict":
            merged += group[1]
        elif union:
            merged += [*_ended(group[2], more=bool(group[3])), *group[3]]
        else:
            return None
    return b"".join(merged)


def _ended(lines: Sequence[bytes], *, more: bool) -> list[bytes]:
    """A text's last line has no end, perhaps; it needs one where lines follow."""
    ended = list(lines)
    if more and ended and ended[-1] == ended[-1].rstrip(b"\r\n"):
        ended[-1] += b"\n"
    return ended
