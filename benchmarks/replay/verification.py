"""Do stored results still hold? Replay a few of them with the present code, and compare every figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isclose
from random import Random

from benchmarks.replay.errors import ReplayError
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.score import Score

MOST_CPU_S = 60.0  # a stored replay that took longer is not chosen
_TOLERANCE = 1e-9  # relative: another machine may round the last digit otherwise


def of_these_files(stored: Mapping[str, Result], base: Job) -> list[Result]:
    """Return the results that are of `base`'s trace and step model, by content, with its paths in their jobs."""
    found = []
    for key, result in stored.items():
        job = result.job.but(trace=base.trace, steps=base.steps)
        if job.key == key:
            found.append(Result(job, result.score, result.cpu_s, result.wall_s, result.code))
    return found


def sample(results: Sequence[Result], count: int, chance: Random) -> list[Result]:
    """Choose `count` results at random among those whose replay took at most MOST_CPU_S of processor time.

    Raises ReplayError if there is none.
    """
    short = [one for one in results if one.cpu_s <= MOST_CPU_S]
    if not short:
        raise ReplayError(
            f"of this trace and step model {len(results)} results are stored, and none was replayed in "
            f"{MOST_CPU_S:g} s or less: name the trace of the stored results with --trace"
        )
    return chance.sample(short, min(count, len(short)))


def verify(results: Sequence[Result], replay: Callable[[Job], Result]) -> Iterator[tuple[Result, list[str]]]:
    """Replay each job, and yield its stored result with the figures that differ: none if the result holds."""
    for stored in results:
        yield stored, differences(stored.score, replay(stored.job).score)


def differences(stored: Score, fresh: Score) -> list[str]:
    """Name each figure that differs, with both values."""
    old, new = (dict(_leaves(json.loads(json.dumps(asdict(score))))) for score in (stored, fresh))
    return [
        f"{name}: stored {old.get(name)}, now {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if not _same(old.get(name), new.get(name))
    ]


def _same(old: float | None, new: float | None) -> bool:
    return old is not None and new is not None and isclose(old, new, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves(one, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _leaves(one, f"{name}[{number}]")
    elif isinstance(value, int | float):
        yield name, float(value)
