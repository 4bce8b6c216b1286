"""A trace where none is at hand: single calls of the thesis's table 6.1, arriving by chance.

Lengths are log-normal through the table's medians and 95th percentiles. The file has the Mooncake shape, so that what
reads traces reads it.
"""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from random import Random

_Z95 = 1.645
# (median, 95th percentile) of prompt and answer: chatbot and deep research, single calls.
_APPLICATIONS = (((27.0, 391.0), (225.0, 1024.0)), ((403.0, 7573.0), (410.0, 1544.0)))
_LONGEST = 16_384


def write(path: Path, count: int = 12_000, seconds: float = 3600.0, seed: int = 0) -> Path:
    """The same seed writes the same bytes."""
    chance = Random(seed)
    lines = []
    for at in sorted(chance.uniform(0, seconds) for _ in range(count)):
        prompt, answer = chance.choice(_APPLICATIONS)
        row = {
            "timestamp": round(at * 1000),
            "input_length": _drawn(chance, *prompt),
            "output_length": _drawn(chance, *answer),
        }
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _drawn(chance: Random, median: float, p95: float) -> int:
    return max(1, min(_LONGEST, round(chance.lognormvariate(log(median), log(p95 / median) / _Z95))))
