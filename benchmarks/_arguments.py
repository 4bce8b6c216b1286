"""What stands on a benchmark's command line, refused before it runs where that could come to nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def count(least: int, why: str = "") -> Callable[[str], int]:
    """A whole number; `why` ends the refusal."""

    def whole_number(text: str) -> int:
        if (given := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{given} is less than {least}" + (f": {why}" if why else ""))
        return given

    return whole_number


def within(least: float, most: float) -> Callable[[str], float]:
    """A number from `least` to `most`."""

    def number(text: str) -> float:
        if not least <= (given := float(text)) <= most:
            raise argparse.ArgumentTypeError(f"{given:g} is not between {least:g} and {most:g}")
        return given

    return number


def to_write(text: str) -> Path:
    """A file that can be written when all is done."""
    try:
        writable(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}; name another") from error
    return Path(text)


def writable(path: Path) -> None:
    """What lies there stays, and nothing lies there that did not. Raises OSError."""
    there = path.exists()
    path.open("a").close()
    if not there:
        path.unlink()
