"""Parse durations: 90, 1.5, "90s", "5m", "1h30m", "250ms", a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_EACH = re.compile(_PART)
_WHOLE = re.compile(rf"\s*+(?:{_PART}\s*+)++")  # possessive: a long text that does not match would take for ever
_HOW = "write 90, '90s', '5m' or '1h30m'"
_DAY_S = 86400.0
_MOST_DAYS = 36500
_SHOWN = 40  # characters of what was given

Duration = str | float | timedelta


def seconds(value: Duration, *, zero: bool = False) -> float:
    """Return a duration in seconds. Raises `ValueError` if it is not a positive duration of at most 100 years: no
    timer of the system takes a longer one. `zero`: 0 is one, too."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, str):
        found = _read(value)
    elif isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a duration: {_HOW}")
    else:
        found = _as_float(value)
    if math.isnan(found) or found < 0 or (found == 0 and not zero):
        raise ValueError(f"{shown(value)} is not a {'' if zero else 'positive '}duration: {_HOW}")
    if found > _MOST_DAYS * _DAY_S:
        raise ValueError(f"{shown(value)} is too long a duration: the longest is {_MOST_DAYS} days, '{_MOST_DAYS}d'")
    return found


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer that is larger than any float
        return math.inf if number > 0 else -math.inf
    except (TypeError, ValueError):
        raise ValueError(f"{shown(number)} is not a duration: {_HOW}") from None


def shown(value: object) -> str:
    """Return what was given, as code, for a message: of a long one the beginning."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of that many digits
        return f"a number of {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _read(text: str) -> float:
    if _NUMBER.fullmatch(text.strip()):
        return float(text)
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a duration: {_HOW}")
    return sum(float(number) * _UNITS[unit] for number, unit in _EACH.findall(text))
