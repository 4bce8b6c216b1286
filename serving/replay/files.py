"""What all readers of traces and of measured runs share: text from a file, gzipped or not, and what may be wrong."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from ramify.serving.replay.errors import BadTrace

LONGEST = 10_000_000  # tokens of a call: what is above is a slip in the file, and would fill the memory
# JSON, but not of the shape that is read.
MISSHAPEN = (ValueError, OverflowError, TypeError, LookupError, AttributeError, RecursionError)


def text(path: Path) -> str:
    """Raises BadTrace."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise BadTrace(path, f"cannot be read: {error}") from error
