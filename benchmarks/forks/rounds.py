"""How often the parts of benchmarks/fork.py measure something, and their rows of medians."""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import rows
from benchmarks.rows import Row


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
    """Return a row of medians. `peer`: who it is, or why there is none. `rounds`: measurements of each side."""
    return rows.median_row(
        name,
        [round(value, 3) for value in ours],
        unit,
        target=target,
        peer=peer,
        peer_value=round(statistics.median(peers), 3) if peers else None,
        times_faster=True,
        rounds=[len(ours), len(peers or [])],
    )


def missing(name: str, why: str) -> Row:
    """Return a row for something that cannot run here."""
    return rows.row(name, None, "ms", peer=why)


def in_budget(work: Callable[[int], float], rounds: int, budget_s: float = math.inf) -> list[float]:
    """Return the results of `rounds` rounds, or of fewer (at least `LEAST`) after `budget_s` seconds."""
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
