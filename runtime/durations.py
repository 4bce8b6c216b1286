"""Parse durations: 90, 1.5, "90s", "5m", "1h30m", "250ms", a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_HOW = "write 90, '90s', '5m' or '1h30m'"
_WHOLE = re.compile(rf"(?:\s*{_PART.pattern}\s*)+")

Duration = str | float | timedelta


def seconds(value: Duration, *, zero: bool = False) -> float:
    """Return a duration in seconds. Raises `ValueError` if it is not a positive duration. `zero`: 0 is one, too."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, str):
        found = _read(value)
    elif isinstance(value, bool):
        raise ValueError(f"{value!r} is not a duration: {_HOW}")
    else:
        found = float(value)
    if not math.isfinite(found) or found < 0 or (found == 0 and not zero):
        raise ValueError(f"{value!r} is not a {'' if zero else 'positive '}duration: {_HOW}")
    return found


def _read(text: str) -> float:
    if _NUMBER.fullmatch(text.strip()):
        return float(text)
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: {_HOW}")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
