"""How times, counts and tables are written for people."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime

_COLOUR = r"\x1b\[[0-9;]*m"
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
# Format characters (Unicode's Cf), which reverse the direction of text or are invisible, and separators of lines. Not
# the joiners U+200C and U+200D, which emoji and several scripts need.
_FORMAT = (
    "[\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0001\U000e0020-\U000e007f]"
)
_UNSAFE = re.compile(rf"\r\n|{_CONTROL}|{_FORMAT}")
_UNSAFE_BUT_COLOURS = re.compile(rf"{_COLOUR}|{_UNSAFE.pattern}")
_WIDEST = 48  # of what a column is padded for


def seconds(value: float | None) -> str:
    """0.004 s, 1.53 s, 42.1 s, 3m20s, 2h05m; "-" for None."""
    if value is None or not math.isfinite(value):
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
    if not math.isfinite(value):
        return "-"
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if value >= size:
            return count(int(value // size), unit) + " ago"
    return f"{max(0, int(value))} s ago"


def instant(value: float) -> str:
    try:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # of a damaged row
        return f"{value} s"


def count(number: int, thing: str) -> str:
    """1 step, 2 steps, 3 branches."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith(('ch', 's', 'x')) else 's'}"


def byte_count(number: int) -> str:
    """A size; a kB has 1024 bytes."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} B"


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


LONGER = 1 << 16  # characters
SHOWN = 1 << 12  # of a longer text


def fitted(text: str, width: int) -> str:
    """A text from a user's program in one line. Clipped if stdout is a terminal; whole in a pipe or a file, where any
    part may be searched for. Of a longer text than 64 kB, the beginning and the size."""
    if len(text) > LONGER:
        return beginning(text, f"{size_of(text)} in all", width)
    return clipped(printable(text[: width + 1]), width) if sys.stdout.isatty() else printable(text)


def beginning(text: str, size: str, width: int) -> str:
    """The beginning of a long text in one line, and its size."""
    room = width if sys.stdout.isatty() else SHOWN
    return f"{printable(text[: room - 1])}… ({size}; --json prints it whole)"


def size_of(text: str) -> str:
    """The size of a text in UTF-8."""
    return byte_count(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")))


def escaped(text: str, *, colours: bool = False) -> str:
    """Text of any number of lines whose control and format characters are written out, such as \\x1b and \\u202e.

    Newlines, tabs and CRLF stay. `colours`: escape sequences that only choose colours stay, too.
    """

    def written(match: re.Match[str]) -> str:
        found = match[0]
        if len(found) > 1:  # CRLF, or a colour
            return found
        code = ord(found)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return (_UNSAFE_BUT_COLOURS if colours else _UNSAFE).sub(written, text)


def quoted_path(path: str) -> str:
    """A path as git writes it: in quotes, with escapes, if it has a quote, a backslash, a control character or a byte
    beyond ASCII."""
    raw = os.fsencode(path)
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw):
        return path
    return '"' + "".join(map(_quoted_byte, raw)) + '"'


_NAMED = {0x07: "a", 0x08: "b", 0x09: "t", 0x0A: "n", 0x0B: "v", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}


def _quoted_byte(byte: int) -> str:
    if byte in _NAMED:
        return "\\" + _NAMED[byte]
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def printable(text: str) -> str:
    """Text from a user's program in one line, without characters that move the cursor."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
