"""Checks of a measured run's times: are they in seconds, do the slots suffice, did requests wait for KV?"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.replay.errors import BadTrace
from benchmarks.replay.inputs.traces import MISSHAPEN, text

_SAMPLED = ("running", "waiting", "kv_cache_pct")
# No engine takes so many seconds from a token to the next, or lets every request wait so long for its first.
_SLOWEST_PACE_S, _SLOWEST_FIRST_S = 10.0, 3600.0
_HANDED_OVER = 5  # steps until a free slot gets a waiting request, or an arrival its slot
# Share of the time to first tokens, or of the samples. Engines with enough KV have less than .001, simulated or
# measured; one whose KV makes TTFT 6 % longer has .035, and one whose KV is mostly waited for .6.
_UNEXPLAINED = 0.02
_FEW_SAMPLES = 10
_FULL_PCT = 95.0  # of the KV: less than a long prompt is free


class TimedRequest(NamedTuple):
    """A request as the file has it."""

    prompt: int
    output: int
    queued: float
    first: float
    last: float
    arrived: float | None  # by the client's clock
    scheduled: float | None  # for the first time

    @property
    def pace(self) -> float:
        return (self.last - self.first) / max(1, self.output - 1)


def in_seconds(folder: Path, rows: Sequence[TimedRequest]) -> None:
    """Check that the engine's times are in seconds, as far as they show it. Raises BadTrace."""
    pace = median([row.pace for row in rows if row.output > 1] or [0.0])
    least = min(row.first - row.queued for row in rows)
    for took, most, what in (
        (pace, _SLOWEST_PACE_S, "a token and the next (the median)"),
        (least, _SLOWEST_FIRST_S, "queued_ts and first_token_ts (the least)"),
    ):
        if took > most:
            raise BadTrace(
                folder,
                f"requests.jsonl: the engine's times are not all in seconds: {took:g} lie between {what}; "
                "give queued_ts, scheduled_ts, first_token_ts and last_token_ts in seconds",
            )


def slots_enough(folder: Path, rows: Sequence[TimedRequest], slots: int) -> None:
    """Check that no more requests held slots at once than there are. Raises BadTrace.

    A preempted request goes before those that have not started, so it counts as if it had kept its slot. Answers
    shorter than `_HANDED_OVER` steps do not count.
    """
    edge = _HANDED_OVER * median([row.pace for row in rows if row.output > 1] or [0.0])
    changes = [(row.first, 1) for row in rows] + [(max(row.first, row.last - edge), -1) for row in rows]
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    if most > slots:
        raise BadTrace(
            folder,
            f"meta.json: {slots} sequences at once (max_num_seqs, on all engines), but at least {most} were between "
            "their first token and their last: put into meta.json what the engine logged for max_num_seqs",
        )


def room_enough(folder: Path, rows: Sequence[TimedRequest], slots: int) -> None:
    """Check that nothing shows requests waiting for KV. Raises BadTrace."""
    shown = None
    if (share := _unexplained(rows, slots)) > _UNEXPLAINED:
        shown = f"{share:.0%} of the time to first tokens passed with a free slot and no prompt in progress"
    elif (share := _sampled_full(folder, slots)) > _UNEXPLAINED:
        shown = f"in {share:.0%} of timeseries.csv's samples with waiting requests it was full, with a slot free"
    if shown:
        raise BadTrace(
            folder,
            f"meta.json does not say how large the KV was, and requests waited for it: {shown}; add kv_cache with "
            "num_gpu_blocks and block_size (vLLM logs 'GPU KV cache size': the one times the other), or "
            "see whether max_num_seqs is the engine's",
        )


def _unexplained(rows: Sequence[TimedRequest], slots: int) -> float:
    """Return the share of all time from queue to first token in which a request waited without a reason.

    A slot was free, and no prompt was being computed that could have used up the step's tokens.
    """
    edge = _HANDED_OVER * median([row.pace for row in rows if row.output > 1] or [0.0])
    changes: list[tuple[float, int, int, int]] = []  # when, and by how many: waiting, in a slot, prompts at work
    for row in rows:
        if row.scheduled is None:
            return 0.0
        changes += [(row.scheduled, 0, 1, 1), (row.first, 0, 0, -1), (row.last + edge, 0, -1, 0)]
        if row.queued + edge < row.scheduled:
            changes += [(row.queued + edge, 1, 0, 0), (row.scheduled, -1, 0, 0)]
    changes.sort()
    waiting, held, prompts, before, lost = 0, 0, 0, changes[0][0], 0.0
    for at, waits, holds, begins in changes:
        if held < slots and not prompts:
            lost += waiting * (at - before)
        waiting, held, prompts, before = waiting + waits, held + holds, prompts + begins, at
    return lost / (sum(row.first - row.queued for row in rows) or 1.0)


def _sampled_full(folder: Path, slots: int) -> float:
    """Return the share of the samples with waiting requests in which KV was full and a slot free; 0 if they are few.

    A line without numbers, as before the engine is up, is no sample. Raises BadTrace.
    """
    path = found(folder, "timeseries.csv")
    lines = csv.DictReader(text(path).splitlines() if path else [])
    waits = full = 0
    try:
        if not set(_SAMPLED) <= set(lines.fieldnames or ()):
            return 0.0
        for line in lines:
            if (sample := _sample(line)) and sample[1] > 0:
                running, _, percent = sample
                waits += 1
                full += running < slots and percent >= _FULL_PCT
    except csv.Error as error:
        raise BadTrace(folder, f"timeseries.csv, line {lines.line_num}: {error}") from error
    return full / waits if waits >= _FEW_SAMPLES else 0.0


def _sample(line: Mapping[str, str]) -> tuple[float, float, float] | None:
    try:
        running, waiting, percent = (float(line[name]) for name in _SAMPLED)
    except MISSHAPEN:
        return None
    return running, waiting, percent


def found(folder: Path, name: str) -> Path | None:
    """Return the path of a file or of its gzipped form; None if neither exists."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)
