from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

Row = dict[str, object]


class Pace(NamedTuple):
    """How often a peer is measured, and for how many seconds at most."""

    rounds: int
    budget_s: float = math.inf


QUICK_BUDGET_S = 3.0  # for one peer
LEAST = 3  # least number of rounds, however long they take


def row(
    name: str,
    ours: list[float],
    target: float | None,
    peer: str = "",
    peers: list[float] | None = None,
    *,
    unit: str = "ms",
) -> Row:
    """Return a row of medians. `peer`: who it is, or why there is none. `rounds`: how often each side was measured."""
    value, other = statistics.median(ours), statistics.median(peers) if peers else None
    return {
        "name": name,
        "ours": round(value, 3),
        "spread": [round(min(ours), 3), round(max(ours), 3)],
        "unit": unit,
        "peer": peer,
        "peer_value": None if other is None else round(other, 3),
        "ratio": None if other is None else round(other / value, 2),
        "target": target,
        "met": None if target is None else value <= target,
        "rounds": [len(ours), len(peers or [])],
    }


def missing(name: str, why: str) -> Row:
    """Return a row for something that cannot run here."""
    empty = dict.fromkeys(("ours", "peer_value", "ratio", "target", "met"))
    return {"name": name, "unit": "ms", "peer": why, **empty}


def in_budget(work: Callable[[int], float], rounds: int, budget_s: float = math.inf) -> list[float]:
    """Return the results of `rounds` rounds, or of fewer, but at least `LEAST`, once `budget_s` seconds have passed."""
    took: list[float] = []
    end = time.monotonic() + budget_s
    while len(took) < rounds and (len(took) < LEAST or time.monotonic() < end):
        took.append(work(len(took)))
    return took


def spent(*words: str) -> float:
    """Return the milliseconds that a program took, which must not fail."""
    begun = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    return (time.perf_counter() - begun) * 1000


def no_docker() -> str:
    """Return why no Docker Engine can be measured, or "" if one answers."""
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, timeout=20)
    except FileNotFoundError:
        return "Docker is not installed"
    except subprocess.TimeoutExpired:
        return "the Docker Engine does not answer"
    return "" if asked.returncode == 0 else "no Docker Engine answers on this machine"
