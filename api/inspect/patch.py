"""Changes of files as text: unified diffs that `git apply` accepts, and counts of lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ramify.fork_engine.line_matching import LineMatcher
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Change, Entry, EntryKind, Snapshot
from ramify.inspect.text import quoted_path

LARGEST = 1_000_000  # bytes per side; larger files are neither read nor shown
CONTEXT = 3  # equal lines around a change
_BARS = 40  # columns of the bars
_WIDEST = 200  # name that the others are padded for
_GIT_TYPE = {EntryKind.FILE: "100", EntryKind.SYMLINK: "120"}
_NO_NEWLINE = b"\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The change of one path. `text` is its part of the diff; counts are None if lines cannot be compared."""

    path: str
    text: bytes
    added: int | None = None
    removed: int | None = None


def file_patch(change: Change, before: bytes, after: bytes) -> FilePatch:
    """The patch of one change. `before` and `after`: the contents, b"" on a side without any."""
    if change.before is not None and change.after is not None and change.before.kind is not change.after.kind:
        # such as a file that became a link: as in git, one removal and one addition
        gone = file_patch(Change(change.path, change.kind, change.before, None), before, b"")
        come = file_patch(Change(change.path, change.kind, None, change.after), b"", after)
        return FilePatch(change.path, gone.text + come.text, come.added, gone.removed)
    head = b"".join(_head(change))
    if before == after:
        return FilePatch(change.path, head, 0, 0)
    if max(len(before), len(after)) > LARGEST or b"\0" in before or b"\0" in after:
        return _not_shown(change)
    lines = [line for hunk in _hunks(_lines(before), _lines(after)) for line in hunk]
    body = [line if line.endswith(b"\n") else line + b"\n" + _NO_NEWLINE for line in lines]
    names = b"--- %s\n+++ %s\n" % _names(change)
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in (b"+", b"-"))
    return FilePatch(change.path, head + names + b"".join(body), added, removed)


def _not_shown(change: Change) -> FilePatch:
    """The patch of a binary or large file."""
    before, after = change.before, change.after
    if before is not None and after is not None and before.digest and before.digest == after.digest:  # only the mode
        return FilePatch(change.path, b"".join(_head(change)), 0, 0)
    return FilePatch(change.path, b"".join(_head(change)) + b"Binary files %s and %s differ\n" % _names(change))


def _hunks(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The hunks of a unified diff, each with its head. Changes with at most twice `CONTEXT` equal lines between them
    share a hunk."""
    hunk: list[tuple[int, int, int, int]] = []
    for change in _changed(before, after):
        if hunk and change[0] - hunk[-1][1] > 2 * CONTEXT:
            yield _hunk(hunk, before, after)
            hunk = []
        hunk.append(change)
    if hunk:
        yield _hunk(hunk, before, after)


def _changed(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """Where the two differ: before[low:high] became after[other_low:other_high]."""
    low = other_low = 0
    for high, other_high, size in LineMatcher(None, before, after).get_matching_blocks():
        if low < high or other_low < other_high:
            yield low, high, other_low, other_high
        low, other_low = high + size, other_high + size


def _hunk(
    changes: Sequence[tuple[int, int, int, int]], before: Sequence[bytes], after: Sequence[bytes]
) -> list[bytes]:
    start = max(0, changes[0][0] - CONTEXT)
    end = min(len(before), changes[-1][1] + CONTEXT)
    other_start = changes[0][2] - (changes[0][0] - start)
    other_end = changes[-1][3] + (end - changes[-1][1])
    lines = [b"@@ -%s +%s @@\n" % (_span(start, end), _span(other_start, other_end))]
    at = start
    for low, high, other_low, other_high in changes:
        lines += [b" " + line for line in before[at:low]]
        lines += [b"-" + line for line in before[low:high]]
        lines += [b"+" + line for line in after[other_low:other_high]]
        at = high
    return lines + [b" " + line for line in before[at:end]]


def _span(start: int, end: int) -> bytes:
    """As in `diff`: lines count from 1, a count of 1 is omitted, and an empty span names the line before it."""
    size = end - start
    if size == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if size else start, size)


def patches(
    snapshots: SnapshotStore,
    changes: Iterable[Change],
    before: Snapshot,
    after: Snapshot,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[FilePatch]:
    """The patches between two snapshots, for all changes that a diff can express.

    `stopped` is asked before each file; once it is true, nothing follows.
    """
    for change in changes:
        if stopped():
            return
        if any(entry is not None and _is_large(entry) for entry in (change.before, change.after)):
            yield _not_shown(change)
            continue
        old = _content(snapshots, before, change.path, change.before)
        new = _content(snapshots, after, change.path, change.after)
        if old is not None or new is not None:
            yield file_patch(change, old or b"", new or b"")


def _is_large(entry: Entry) -> bool:
    return entry.kind is EntryKind.FILE and entry.size > LARGEST


def _content(snapshots: SnapshotStore, snapshot: Snapshot, path: str, entry: Entry | None) -> bytes | None:
    """A file's bytes or a link's target; None for what has no contents, such as a folder."""
    if entry is None:
        return None
    if entry.kind is EntryKind.FILE:
        return snapshots.read(snapshot, path)
    return os.fsencode(entry.target) if entry.kind is EntryKind.SYMLINK else None


def stat_lines(patches: list[FilePatch]) -> Iterator[bytes]:
    """As `git diff --stat`: a line per file, then the sum."""
    names = [_quoted(patch.path) for patch in patches]
    longest = max((len(name) for name in names if len(name) <= _WIDEST), default=0)
    most = max(((patch.added or 0) + (patch.removed or 0) for patch in patches), default=0)
    scale = min(1.0, _BARS / most) if most else 1.0
    for patch, quoted in zip(patches, names, strict=True):
        name = quoted.ljust(longest)
        if patch.added is None or patch.removed is None:
            yield b" %s | binary or large\n" % name
            continue
        bars = b"+" * _bar(patch.added, scale) + b"-" * _bar(patch.removed, scale)
        yield b" %s | %d %s\n" % (name, patch.added + patch.removed, bars)
    added, removed = (sum(getattr(patch, side) or 0 for patch in patches) for side in ("added", "removed"))
    yield b" %d file%s changed, %d added, %d removed lines\n" % (
        len(patches),
        b"" if len(patches) == 1 else b"s",
        added,
        removed,
    )


def _bar(lines: int, scale: float) -> int:
    return max(1, round(lines * scale)) if lines else 0


def _lines(data: bytes) -> list[bytes]:
    """Split at newlines only, as diff does; `bytes.splitlines` would also split at carriage returns."""
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def _mode(entry: Entry) -> str:
    kind = _GIT_TYPE.get(entry.kind, "100")
    if entry.kind is EntryKind.SYMLINK:
        return f"{kind}000"
    return f"{kind}{'755' if entry.mode & 0o100 else '644'}"


def _names(change: Change) -> tuple[bytes, bytes]:
    old = b"/dev/null" if change.before is None else _quoted(f"a/{change.path}")
    new = b"/dev/null" if change.after is None else _quoted(f"b/{change.path}")
    return old, new


def _head(change: Change) -> Iterator[bytes]:
    yield b"diff --git %s %s\n" % (_quoted(f"a/{change.path}"), _quoted(f"b/{change.path}"))
    before, after = change.before, change.after
    if before is None and after is not None:
        yield f"new file mode {_mode(after)}\n".encode()
    elif after is None and before is not None:
        yield f"deleted file mode {_mode(before)}\n".encode()
    elif before is not None and after is not None and _mode(before) != _mode(after):
        yield f"old mode {_mode(before)}\nnew mode {_mode(after)}\n".encode()


def _quoted(path: str) -> bytes:
    return quoted_path(path).encode()
