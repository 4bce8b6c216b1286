"""Durations as people write them: 90, 1.5, "90s", "5m", "1h30m", "250ms", a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:\s*{_PART.pattern}\s*)+")

Duration = str | float | timedelta


def seconds(value: Duration) -> float:
    """Seconds of a duration. Raises `ValueError` for what is not one, or is not positive."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif (isinstance(value, int | float) and not isinstance(value, bool)) or (
        isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*", value)
    ):
        found = float(value)
    elif isinstance(value, str) and _WHOLE.fullmatch(value):
        found = sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(value))
    else:
        raise ValueError(f"{value!r} is not a duration: write 90, '90s', '5m' or '1h30m'")
    if not math.isfinite(found) or found <= 0:
        raise ValueError(f"{value!r} is not a positive duration")
    return found
