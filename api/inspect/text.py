"""How times, counts and tables are written for people."""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime
from typing import TextIO

_CONTROL = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_WIDEST = 48  # of what a column is padded for


def seconds(value: float | None) -> str:
    """0.004 s, 1.53 s, 42.1 s, 3m20s, 2h05m; "-" for None."""
    if value is None:
        return "-"
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 0.0995:
        return f"{value:.3f} s"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 99.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def age(value: float) -> str:
    """How long ago, in the largest unit."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if value >= size:
            return count(int(value // size), unit) + " ago"
    return f"{max(0, int(value))} s ago"


def instant(value: float) -> str:
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def count(number: int, thing: str) -> str:
    """1 step, 2 steps, 3 branches."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith(('ch', 's', 'x')) else 's'}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[str] = ()) -> list[str]:
    """Lines with aligned columns; the columns named in `right` are aligned to the right.

    A very long cell exceeds its column: other lines are not padded for it.
    """
    body = [list(row) for row in rows]
    columns = list(zip(header, *body, strict=True))
    widths = [max(len(cell) for cell in column if len(cell) <= _WIDEST) for column in columns]
    lines = []
    for row in (list(header), *body):
        cells = [
            cell.rjust(width) if head in right else cell.ljust(width)
            for cell, width, head in zip(row, widths, header, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def fitted(text: str, width: int) -> str:
    """Clipped if stdout is a terminal; whole in a pipe or a file, where any part may be searched for."""
    return clipped(text, width) if sys.stdout.isatty() else text


def harmless(text: str, stream: TextIO) -> str:
    """Text of a model or a user, of any number of lines; for a terminal without control characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if stream.isatty() else text


def clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def printable(text: str) -> str:
    """Text from a user's program in one line, without characters that move the cursor."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
