"""Line-based three-way merge of text files."""

from __future__ import annotations

from collections.abc import Sequence

from merge3 import Merge3

from ramify.fork_engine.line_matching import LineMatcher

MOST_BYTES = 4 << 20
"""Size limit of each side in bytes. Nobody wrote a larger file by hand, and it is not read at all."""


def merge_lines(base: bytes, ours: bytes, theirs: bytes, *, union: bool = False) -> bytes | None:
    """Merge three versions by line. Returns None on a conflict, if a side is not UTF-8, or above `MOST_BYTES`.

    Lines end with LF, CRLF or CR and keep their ends. With `union`, lines that both sides changed are kept from ours
    and then from theirs, so there is no conflict. The work is linear in the number of lines: see `line_matching`.
    """
    if max(map(len, (base, ours, theirs))) > MOST_BYTES or b"\0" in base + ours + theirs:
        return None
    try:
        for side in (base, ours, theirs):
            side.decode("utf-8")
    except UnicodeDecodeError:
        return None
    before, mine, yours = (side.splitlines(True) for side in (base, ours, theirs))
    merged: list[bytes] = []
    for group in Merge3(before, mine, yours, sequence_matcher=LineMatcher).merge_groups():
        if group[0] != "conflict":
            merged += group[1]
        elif union:
            merged += [*_ended(group[2], more=bool(group[3])), *group[3]]
        else:
            return None
    return b"".join(merged)


def _ended(lines: Sequence[bytes], *, more: bool) -> list[bytes]:
    """End the last line with a newline if more lines follow."""
    ended = list(lines)
    if more and ended and ended[-1] == ended[-1].rstrip(b"\r\n"):
        ended[-1] += b"\n"
    return ended
