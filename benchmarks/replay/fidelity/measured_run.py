"""`read_run`: reads a measured run of vLLM from a folder.

A folder holds `meta.json` (`engine_kwargs`: max_num_seqs, max_num_batched_tokens; async_scheduling,
enable_chunked_prefill and enable_prefix_caching where they are false; data_parallel_size with
enable_expert_parallel where several engines shared the requests; `kv_cache`, if there: num_gpu_blocks and
block_size, without which its KV is taken as large enough for all slots; `resolved_config`, if there, is what became
of the arguments) and `requests.jsonl`, gzipped or not: for each request its lengths and when it arrived, was queued,
scheduled (`scheduled_ts`, if there), and gave its first and last token. One that failed (`error`) is refused.

A run whose KV was too small, and whose files do not give its size, is refused: the figures would compare a run that
waited for KV with one that never does, and only the owner of the files knows the size. Such a run shows in requests
that waited although a slot was free and no prompt was being computed, or in `timeseries.csv`, if it is there
(running, waiting, kv_cache_pct). A KV that only delayed the answers of preempted requests is not noticed: the files
do not show it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from benchmarks.replay.errors import BadTrace
from benchmarks.replay.fidelity.plausibility import TimedRequest, found, in_seconds, room_enough, slots_enough
from benchmarks.replay.inputs.traces import LONGEST, MISSHAPEN, text

_MOST_ENGINES = 64
_ENGINE = "max_num_seqs and max_num_batched_tokens"
_FIELDS = "input_toks, output_toks, queued_ts, first_token_ts, last_token_ts"
# If requests were queued over so many times the span of their arrivals, the units differ, unless they arrived in a
# burst as short as this, which is queued as fast as the server takes it.
_OTHER_UNIT, _BURST_S = 300.0, 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """One request. Times are seconds since the run began."""

    prompt: int
    output: int
    arrived: float
    first: float
    last: float

    @property
    def ttft(self) -> float:
        return self.first - self.arrived

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / max(1, self.output - 1)


# Settings that would change the schedule, and the values with which a run can be replayed.
_NOT_REPLAYED: Mapping[str, tuple[object, ...]] = {
    "speculative_config": ({},),
    "pipeline_parallel_size": (1,),
    "scheduling_policy": ("fcfs",),
    "long_prefill_token_threshold": (0,),
}


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run. Its requests are in the order of arrival."""

    name: str
    slots: int
    step_tokens: int
    requests: tuple[Served, ...]
    overlap: bool = True  # a step was scheduled while the one before it ran, as with --async-scheduling
    chunked_prefill: bool = True
    blocks: int | None = None  # of its KV; None: unknown, and assumed to be enough
    block_size: int = 16
    engines: int = 1  # engines that run in lockstep
    prefix_cache: bool = True  # a preempted request finds its tokens again


def read_run(folder: Path) -> Run:
    """Read a measured run. Raises BadTrace, with the line."""
    run, rows = _engine(folder, _open(folder, "meta.json")), _rows(folder, _open(folder, "requests.jsonl"))
    in_seconds(folder, rows)
    run = replace(run, requests=_in_order(rows, _arrivals(folder, rows)))
    longest = max(one.prompt + one.output for one in run.requests)
    if not run.chunked_prefill and longest > run.step_tokens:
        raise BadTrace(
            folder,
            f"a request of {longest} tokens, in steps of {run.step_tokens} without chunked prefill: vLLM cannot run "
            "like this; "
            "put into meta.json what the engine logged for max_num_batched_tokens and enable_chunked_prefill",
        )
    if run.blocks is None:
        if run.chunked_prefill:  # otherwise a prompt waits, although slots are free, until it fits into a step
            room_enough(folder, rows, run.slots)
    elif longest > (run.blocks - 1) * run.block_size:
        raise BadTrace(
            folder,
            f"meta.json: a KV of {run.blocks} blocks of {run.block_size} tokens cannot hold a request of {longest}",
        )
    run = _timed(folder, run)
    slots_enough(folder, rows, run.slots * run.engines)
    return run


def _engine(folder: Path, meta: str) -> Run:
    """Return the run without its requests. Raises BadTrace."""
    try:
        engine = _said(json.loads(meta))
        slots, step_tokens = int(engine["max_num_seqs"]), int(engine["max_num_batched_tokens"])
        overlap, chunked, prefixes = (
            engine.get(name) is not False
            for name in ("async_scheduling", "enable_chunked_prefill", "enable_prefix_caching")
        )
        engines = int(engine.get("data_parallel_size") or 1)
        known = engine.get("num_gpu_blocks", engine.get("num_gpu_blocks_override"))
        blocks = None if known is None else int(known)
        block_size = int(engine.get("block_size") or 16)
    except MISSHAPEN as error:
        raise BadTrace(
            folder, f"meta.json names no engine: {_why(error)}; it has engine_kwargs, {_ENGINE}"
        ) from error
    if not 1 <= slots <= step_tokens:
        raise BadTrace(
            folder, f"meta.json: {slots} sequences in steps of {step_tokens} tokens: vLLM cannot run like this"
        )
    if not 1 <= engines <= _MOST_ENGINES:
        raise BadTrace(folder, f"meta.json: {engines} engines (data_parallel_size); at most {_MOST_ENGINES}")
    if engines > 1 and engine.get("enable_expert_parallel") is not True:
        raise BadTrace(
            folder,
            f"meta.json: {engines} engines (data_parallel_size) without enable_expert_parallel: the file "
            "does not say whether they run in lockstep",
        )
    for name, usual in _NOT_REPLAYED.items():
        if engine.get(name) not in (None, *usual):
            raise BadTrace(
                folder, f"meta.json: {name} is {str(engine[name])[:60]!r}: such an engine cannot be replayed"
            )
    if block_size < 1:
        raise BadTrace(folder, f"meta.json: kv_cache has blocks of {block_size} tokens")
    return Run(folder.name, slots, step_tokens, (), overlap, chunked, blocks, block_size, engines, prefixes)


def _said(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of the engine by the names of its arguments.

    The resolved configuration takes precedence over the arguments, except for the number of engines, where each
    engine may call itself the only one. Raises one of MISSHAPEN.
    """
    resolved = meta.get("resolved_config") or {}
    scheduler, parallel, cache = (resolved.get(f"{name}_config") or {} for name in ("scheduler", "parallel", "cache"))
    asked, speculative = meta.get("engine_kwargs") or {}, {"speculative_config": resolved.get("speculative_config")}
    named = {**scheduler, "scheduling_policy": scheduler.get("policy")}
    said = [parallel, asked, speculative, named, cache, meta.get("kv_cache") or {}]
    return {name: value for part in said for name, value in part.items() if value is not None}


def _why(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _open(folder: Path, name: str) -> str:
    if path := found(folder, name):
        return text(path)
    raise BadTrace(folder, f"has neither {name} nor {name}.gz")


def _rows(folder: Path, lines: str) -> list[TimedRequest]:
    """Raises BadTrace."""
    rows = []
    for number, line in enumerate(lines.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(_row(json.loads(line)))
            except MISSHAPEN as error:
                raise BadTrace(
                    folder, f"requests.jsonl, line {number}: {_why(error)}; a request has {_FIELDS}"
                ) from error
    if len(rows) < 8:
        raise BadTrace(folder, f"{len(rows)} requests are too few to fit on a half and judge on the other")
    return rows


def _row(raw: Mapping[str, Any]) -> TimedRequest:
    """Raises one of MISSHAPEN."""
    if raw.get("error"):
        raise ValueError(f"it failed ({str(raw['error'])[:60]}): only a run whose requests all ended can be replayed")
    prompt, output = int(raw["input_toks"]), int(raw["output_toks"])
    if not (0 <= prompt <= LONGEST and 0 <= output <= LONGEST):
        raise ValueError(f"lengths of {prompt} and {output} tokens")
    queued, first, last = (float(raw[name]) for name in ("queued_ts", "first_token_ts", "last_token_ts"))
    arrived = float(raw["arrival_time"]) if raw.get("arrival_time") is not None else None
    if not (isfinite(arrived or 0.0) and -inf < queued <= first <= last < inf):
        raise ValueError(f"queued at {queued}, tokens from {first} to {last}: the times are out of order")
    scheduled = float(raw["scheduled_ts"]) if raw.get("scheduled_ts") else None  # vLLM has 0 for never
    if scheduled is not None and not queued <= scheduled <= first:
        raise ValueError(
            f"queued at {queued}, scheduled at {scheduled}, tokens from {first}: the times are out of order"
        )
    return TimedRequest(max(1, prompt), max(1, output), queued, first, last, arrived, scheduled)


def _arrivals(folder: Path, rows: Sequence[TimedRequest]) -> list[float]:
    """Return the arrivals on the engine's clock. Raises BadTrace if the client's clock has another unit."""
    # Arrivals are on the client's clock, the rest on the engine's. The shortest wait gives the offset.
    offset = min((row.queued - row.arrived for row in rows if row.arrived is not None), default=0.0)
    arrivals = [row.queued if row.arrived is None else row.arrived + offset for row in rows]
    lasted = max(row.last for row in rows) - min(row.queued for row in rows)
    if max(row.queued - at for row, at in zip(rows, arrivals, strict=True)) > lasted:
        raise BadTrace(
            folder,
            f"requests.jsonl: arrival_time is not in the seconds of queued_ts: the run took {lasted:g} of them",
        )
    told = [(row.arrived, row.queued) for row in rows if row.arrived is not None]
    came, queued = (max(times) - min(times) for times in zip(*told, strict=True)) if told else (0.0, 0.0)
    if came > _BURST_S and queued > _OTHER_UNIT * came:
        raise BadTrace(
            folder,
            "requests.jsonl: queued_ts is not in the seconds of arrival_time: requests arrived over "
            f"{came:g} of them and were queued over {queued:g}; give all times in seconds",
        )
    return arrivals


def _in_order(rows: Sequence[TimedRequest], arrivals: Sequence[float]) -> tuple[Served, ...]:
    # Requests that arrived at the same instant were queued one after the other, and the file may be in any order.
    came = sorted(zip(rows, arrivals, strict=True), key=lambda one: (one[1], one[0].queued))
    begin = min(arrivals)
    return tuple(Served(row.prompt, row.output, at - begin, row.first - begin, row.last - begin) for row, at in came)


def _timed(folder: Path, run: Run) -> Run:
    """Return `run` if both halves can be compared with a replay. Raises BadTrace."""
    half = len(run.requests) // 2
    for name, ones in (("first", run.requests[:half]), ("second", run.requests[half:])):
        if not any(one.output > 1 and one.last > one.first for one in ones):
            raise BadTrace(folder, f"no request of its {name} half took time from its first token to its last")
        if not any(one.ttft > 0 for one in ones):
            raise BadTrace(folder, f"every request of its {name} half has its first token as it arrives")
    return run
