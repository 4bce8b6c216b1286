"""Types of command-line arguments that refuse a bad value before the benchmark starts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def count(least: int, why: str = "") -> Callable[[str], int]:
    """Return a type for integers of at least `least`. `why` is added to the error message."""

    def whole_number(text: str) -> int:
        if (given := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{given} is less than {least}" + (f": {why}" if why else ""))
        return given

    return whole_number


def within(least: float, most: float) -> Callable[[str], float]:
    """Return a type for numbers from `least` to `most`."""

    def number(text: str) -> float:
        if not least <= (given := float(text)) <= most:
            raise argparse.ArgumentTypeError(f"{given:g} is not between {least:g} and {most:g}")
        return given

    return number


def to_write(text: str) -> Path:
    """A file that can be written when the benchmark ends."""
    try:
        writable(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}; name another") from error
    return Path(text)


def writable(path: Path) -> None:
    """Check that the path can be written, without changing or creating anything. Raises OSError."""
    there = path.exists()
    path.open("a").close()
    if not there:
        path.unlink()
