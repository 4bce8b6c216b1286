"""Measured runs of vLLM as files.

A folder holds `meta.json` (`engine_kwargs`: max_num_seqs, max_num_batched_tokens; async_scheduling and
enable_chunked_prefill where they are false; data_parallel_size with enable_expert_parallel where several engines
shared the requests; `kv_cache`, if there: num_gpu_blocks and block_size, without which its KV is taken as large
enough for all slots) and `requests.jsonl`, gzipped or not: for each request its lengths and when it arrived, was
queued, and gave its first and last token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from ramify.serving.replay.errors import BadTrace
from ramify.serving.replay.files import LONGEST, MISSHAPEN, text

_MOST_ENGINES = 64
_ENGINE = "max_num_seqs and max_num_batched_tokens"
_FIELDS = "input_toks, output_toks, queued_ts, first_token_ts, last_token_ts"


@dataclass(frozen=True, slots=True)
class Served:
    """One request: times in seconds since the run began."""

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


# What would change a schedule, and how it may stand in the file.
_NOT_REPLAYED: Mapping[str, tuple[object, ...]] = {
    "speculative_config": ({},),
    "pipeline_parallel_size": (1,),
    "scheduling_policy": ("fcfs",),
    "long_prefill_token_threshold": (0,),
}


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run, its requests in the order of their arrival."""

    name: str
    slots: int
    step_tokens: int
    requests: tuple[Served, ...]
    overlap: bool = True  # a step was scheduled while the one before it ran, as with --async-scheduling
    chunked_prefill: bool = True
    blocks: int | None = None  # of its KV; None: not known, and taken as enough
    block_size: int = 16
    engines: int = 1  # beside each other, in step with each other


def read_run(folder: Path) -> Run:
    """Raises BadTrace, with the line."""
    meta, lines = _open(folder, "meta.json"), _open(folder, "requests.jsonl").splitlines()
    try:
        engine = json.loads(meta)["engine_kwargs"]
        slots, step_tokens = int(engine["max_num_seqs"]), int(engine["max_num_batched_tokens"])
        overlap, chunked = engine.get("async_scheduling"), engine.get("enable_chunked_prefill")
        engines = int(engine.get("data_parallel_size") or 1)
        kv = json.loads(meta).get("kv_cache") or {}
        known = kv.get("num_gpu_blocks", engine.get("num_gpu_blocks_override"))
        blocks = None if known is None else int(known)
        block_size = int(kv.get("block_size") or engine.get("block_size") or 16)
    except MISSHAPEN as error:
        raise BadTrace(folder, f"meta.json names no engine: {error!r}; it has engine_kwargs, {_ENGINE}") from error
    if not 1 <= slots <= step_tokens:
        raise BadTrace(folder, f"meta.json: {slots} sequences in steps of {step_tokens} tokens: no vLLM runs so")
    if not 1 <= engines <= _MOST_ENGINES:
        raise BadTrace(
            folder, f"meta.json: {engines} engines side by side (data_parallel_size); at most {_MOST_ENGINES}"
        )
    if engines > 1 and engine.get("enable_expert_parallel") is not True:
        raise BadTrace(
            folder,
            f"meta.json: {engines} engines side by side (data_parallel_size) without enable_expert_parallel: whether "
            "their steps wait for each other is not said",
        )
    for name, usual in _NOT_REPLAYED.items():
        if engine.get(name) not in (None, *usual):
            raise BadTrace(folder, f"meta.json: {name} is {str(engine[name])[:60]!r}: such an engine is not replayed")
    if block_size < 1:
        raise BadTrace(folder, f"meta.json: kv_cache has blocks of {block_size} tokens")
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(_row(json.loads(line)))
            except MISSHAPEN as error:
                raise BadTrace(
                    folder, f"requests.jsonl, line {number}: {error!r}; a request has {_FIELDS}"
                ) from error
    if len(rows) < 8:
        raise BadTrace(folder, f"{len(rows)} requests are too few to fit on a half and judge on the other")
    # Arrivals are on the client's clock, the rest on the engine's: who waited least tells the offset.
    offset = min((row.queued - row.arrived for row in rows if row.arrived is not None), default=0.0)
    arrivals = [row.queued if row.arrived is None else row.arrived + offset for row in rows]
    begin = min(arrivals)
    lasted = max(row.last for row in rows) - min(row.queued for row in rows)
    if max(row.queued - at for row, at in zip(rows, arrivals, strict=True)) > lasted:
        raise BadTrace(
            folder,
            f"requests.jsonl: arrival_time is not in the seconds of queued_ts: the run took {lasted:g} of them",
        )
    # Who came at the same instant was queued one after the other, and the file may be in any order.
    came = sorted(zip(rows, arrivals, strict=True), key=lambda one: (one[1], one[0].queued))
    in_order = tuple(
        Served(row.prompt, row.output, at - begin, row.first - begin, row.last - begin) for row, at in came
    )
    run = Run(
        folder.name,
        slots,
        step_tokens,
        in_order,
        overlap is not False,
        chunked is not False,
        blocks,
        block_size,
        engines,
    )
    longest = max(one.prompt + one.output for one in in_order)
    if blocks is not None and longest > (blocks - 1) * block_size:
        raise BadTrace(
            folder, f"meta.json: a KV of {blocks} blocks of {block_size} tokens cannot hold a request of {longest}"
        )
    return _timed(folder, run)


def _open(folder: Path, name: str) -> str:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return text(path)
    raise BadTrace(folder, f"has neither {name} nor {name}.gz")


class _Row(NamedTuple):
    """A request as it stands in the file."""

    prompt: int
    output: int
    queued: float
    first: float
    last: float
    arrived: float | None  # by the client's clock


def _row(raw: Mapping[str, Any]) -> _Row:
    """Raises one of MISSHAPEN."""
    prompt, output = int(raw["input_toks"]), int(raw["output_toks"])
    if not (0 <= prompt <= LONGEST and 0 <= output <= LONGEST):
        raise ValueError(f"lengths of {prompt} and {output} tokens")
    queued, first, last = (float(raw[name]) for name in ("queued_ts", "first_token_ts", "last_token_ts"))
    arrived = float(raw["arrival_time"]) if raw.get("arrival_time") is not None else None
    if not (isfinite(arrived or 0.0) and -inf < queued <= first <= last < inf):
        raise ValueError(f"queued at {queued}, tokens from {first} to {last}: no order of times")
    return _Row(max(1, prompt), max(1, output), queued, first, last, arrived)


def _timed(folder: Path, run: Run) -> Run:
    """`run`, each of whose halves has something to hold a replay against. Raises BadTrace."""
    half = len(run.requests) // 2
    for name, ones in (("first", run.requests[:half]), ("second", run.requests[half:])):
        if not any(one.output > 1 and one.last > one.first for one in ones):
            raise BadTrace(folder, f"no request of its {name} half took time from its first token to its last")
        if not any(one.ttft > 0 for one in ones):
            raise BadTrace(folder, f"every request of its {name} half has its first token as it arrives")
    return run
