"""Numbers on a benchmark's command line, refused where a run could do nothing with them."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def count(least: int, why: str = "") -> Callable[[str], int]:
    """A whole number; `why` ends the refusal."""

    def whole_number(text: str) -> int:
        if (given := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{given} is less than {least}" + (f": {why}" if why else ""))
        return given

    return whole_number


def between(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        if not least <= (given := float(text)) <= most:
            raise argparse.ArgumentTypeError(f"{given:g} is not between {least:g} and {most:g}")
        return given

    return number
