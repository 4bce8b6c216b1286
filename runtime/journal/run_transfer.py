"""Move a run between machines that have databases of their own: its rows through a bucket, with its snapshots.

A run is worked on in one place at a time. `push_run` first notes in the home that the run has left, and then uploads
its rows under the next generation number. `pull_run` claims a generation; the bucket gives each to one home only. So
after a kill at any point the run can go on in exactly one place:

- noted, not uploaded: `pull_run` on the same machine finds no such generation, and removes the note;
- uploaded, not claimed: any one machine may claim it, also the one that it came from;
- claimed, rows not stored: the same home repeats `pull_run`.

If both machines use one database server, the rows are there already, and its locks guard the run: then only snapshots
travel.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramify.compiler.plan import OpKind
from ramify.fork_engine.errors import RemoteObjectAltered, RemoteObjectMissing
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.manifest import MALFORMED, canonical_json
from ramify.fork_engine.remote import formats as names
from ramify.fork_engine.remote.pull import Pulled, pull
from ramify.fork_engine.remote.push import Pushed, push
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import RunError, RunLocked, RunNotFound, RunPushed, StoreError
from ramify.runtime.records import (
    DECORATORS,
    AnswerRecord,
    CheckpointRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunRows,
    RunStatus,
    Settings,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.address import REVISIONS
from ramify.runtime.store.engines import finish_despite_cancel
from ramify.runtime.store.rows import effect_record
from ramify.runtime.store.run_locks import PushedRun, hold_run, note_brought_back, note_pushed, pushed_run

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PulledRun:
    """A run that this machine can continue. fetched: its snapshots. was_here: its rows were here already."""

    run: RunRecord
    fetched: Pulled
    was_here: bool


def named_snapshots(rows: RunRows) -> set[SnapshotId]:
    """Return every snapshot that the rows name."""
    found = {rows.run.base_snapshot, *(one.snapshot_id for one in rows.checkpoints)}
    found |= {id for row in rows.ops for id in (row.snapshot_in, row.snapshot_out) if id is not None}
    return found | {SnapshotId(row.attrs["ours"]) for row in rows.ops if "ours" in row.attrs}


async def push_run(store: RunStore, remote: RemoteStore, pins: Pins, locks: Path, run: RunId) -> Pushed:
    """Upload a run. With a database of this machine, the run goes on where it is pulled, and nowhere else.

    Snapshots that garbage collection took are left out: a resume computes them again.

    Raises `RunLocked` if a process works on it, `RunPushed` if it was pushed before, `RunError` for a LangGraph run
    whose thread is in a database of this machine, and `RemoteError`; the run then stays here.
    """
    async with hold_run(locks, store, run):
        rows = await store.rows_of(run)
        if not store.address.on_server and rows.run.frontend != DECORATORS:
            raise RunError(
                f"run {run} belongs to a LangGraph thread, whose checkpoints are in a database of this machine: use "
                "PostgreSQL for runs that move"
            )
        here = set(await asyncio.to_thread(remote.local.present))
        done = await asyncio.to_thread(push, remote, sorted(named_snapshots(rows) & here), pins)
        if not store.address.on_server:  # a thread cannot be cancelled: hold the run until it has left
            await finish_despite_cancel(asyncio.to_thread(_publish, remote, locks, rows))
        return done


def _publish(remote: RemoteStore, locks: Path, rows: RunRows) -> None:
    run, generation = rows.run.id, _newest(remote, rows.run.id) + 1
    note_pushed(locks, run, PushedRun(remote.bucket.url, generation))
    if not remote.bucket.create(names.run_object(run, generation), encode(rows)):
        note_brought_back(locks, run)
        raise RunLocked(
            f"run {run} was pushed by another machine at the same time: `ramify pull {run}` takes it here"
        )


async def pull_run(store: RunStore, remote: RemoteStore, locks: Path, run: RunId) -> PulledRun:
    """Fetch a run and its snapshots, so that this machine can continue it.

    Raises `RunNotFound` if neither the bucket nor the database has it, `RunPushed` if another home has pulled it,
    `StoreError` if another version of Ramify pushed it, and `RemoteError`. It can be repeated.
    """
    async with hold_run(locks, store, run, even_pushed=True):
        left = pushed_run(locks, run)
        generation = 0 if store.address.on_server else await asyncio.to_thread(_newest, remote, run)
        try:
            mine = await store.rows_of(run)
        except RunNotFound:
            mine = None
        if mine is not None and (left is None or generation < left.generation):  # it never left
            fetched = await _fetch(remote, mine)
            note_brought_back(locks, run)
            return PulledRun(mine.run, fetched, was_here=True)
        if generation == 0:
            raise RunNotFound(f"no run {run} in {remote.bucket.url}: push it from the machine that has it")
        data = await asyncio.to_thread(remote.bucket.get, names.run_object(run, generation))
        rows = decode(data, run)
        fetched = await _fetch(remote, rows)
        await asyncio.to_thread(_claim, remote, run, generation)
        await store.put_rows(rows, replace=mine is not None)
        note_brought_back(locks, run)
        return PulledRun(rows.run, fetched, was_here=False)


async def _fetch(remote: RemoteStore, rows: RunRows) -> Pulled:
    """Fetch the snapshots of a run that the bucket has: the others were collected before it was pushed."""

    def work() -> Pulled:
        ids = sorted(named_snapshots(rows) - set(remote.local.present()))
        found = remote.pool.map(remote.record_names, ids)
        return pull(remote, [id for id, names in zip(ids, found, strict=True) if names])

    return await asyncio.to_thread(work)


def _newest(remote: RemoteStore, run: RunId) -> int:
    """Return the highest generation of a run in the bucket, 0 if there is none."""
    found = (names.generation_of(one.name) for one in remote.bucket.objects(f"{names.RUNS}/{run}"))
    return max((one for one in found if one is not None), default=0)


def _claim(remote: RemoteStore, run: RunId, generation: int) -> None:
    claim = f"{names.CLAIMS}/{run}/{generation:08}"
    if remote.bucket.create(claim, remote.owner.encode()):
        return
    try:
        owner = remote.bucket.get(claim).decode(errors="replace")
    except RemoteObjectMissing:
        owner = ""
    if owner != remote.owner:
        raise RunPushed(
            f"run {run} was pulled by another machine, the home {owner} of {remote.bucket.url}: push it there first"
        )


def encode(rows: RunRows) -> bytes:
    fields = {"format": FORMAT, "schema": REVISIONS[-1], **asdict(rows)}
    return canonical_json({**fields, "check": digest_bytes(canonical_json(fields))})


def decode(data: bytes, run: RunId) -> RunRows:
    """Raises `RemoteObjectAltered`, and `StoreError` for the rows of another version of Ramify."""
    altered = RemoteObjectAltered(f"the rows of run {run} in the bucket were altered: push the run again")
    try:
        raw = json.loads(data)
        if raw.pop("check") != digest_bytes(canonical_json(raw)):
            raise altered
        if (raw["format"], raw["schema"]) != (FORMAT, REVISIONS[-1]):
            raise StoreError(
                f"run {run} was pushed by another version of Ramify (schema {raw['schema']!r}, here "
                f"{REVISIONS[-1]!r}): use the same version on both machines"
            )
        rows = _rows(raw)
        if rows.run.id != run:
            raise altered
        return rows
    except MALFORMED:
        raise altered from None


def _rows(raw: Mapping[str, Any]) -> RunRows:
    run = raw["run"]
    settings = Settings(**run["settings"])
    return RunRows(
        RunRecord(**{**run, "settings": settings, "status": RunStatus(run["status"])}),
        tuple(
            OpRecord(**{**one, "kind": OpKind(one["kind"]), "status": OpStatus(one["status"])}) for one in raw["ops"]
        ),
        tuple(LLMRecord(**one) for one in raw["llm"]),
        tuple(CheckpointRecord(**{**one, "parents": tuple(one["parents"])}) for one in raw["checkpoints"]),
        tuple(map(effect_record, raw["effects"])),
        tuple(map(effect_record, raw["attempts"])),
        tuple(AnswerRecord(**one) for one in raw["answers"]),
    )
