"""What a person can do with a stopped run: record the outcome of an effect in doubt, or go back to a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ramify.compiler.plan import OpId, OpKind, Plan
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.effects.fence import EffectfulStep, compensate
from ramify.runtime.errors import AmbiguousRef, RunError, RunNotFound
from ramify.runtime.events import Event
from ramify.runtime.journal.journal import Journal
from ramify.runtime.journal.refs import SHORTEST_PREFIX
from ramify.runtime.records import (
    DOUBTFUL,
    ROOT,
    CheckpointRecord,
    EffectRecord,
    EffectStatus,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunStatus,
    RunUpdate,
    checkpoint_id,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.run_locks import hold_run


class LedgerServices(Protocol):
    """The services that going back to a checkpoint needs."""

    @property
    def store(self) -> RunStore: ...
    @property
    def snapshots(self) -> SnapshotStore: ...
    @property
    def locks(self) -> Path: ...
    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def emit(self) -> Callable[[Event], None]: ...


OPEN = DOUBTFUL | {EffectStatus.APPROVED, EffectStatus.AGAIN}


async def approve(
    store: RunStore,
    locks: Path,
    run: RunId,
    step: str,
    verdict: EffectStatus,
    result_json: str | None = None,
    *,
    clock: Callable[[], float],
) -> EffectRecord:
    """Record the outcome of an effect in doubt, and return it.

    step: the step's name, or the first four characters or more of the effect's idempotency key.
    verdict: APPROVED if the effect happened, AGAIN if it did not and is to be performed.
    result_json: the encoded result that the step would have returned.
    clock: returns Unix seconds.

    Raises `RunNotFound`, `AmbiguousRef`, and `RunLocked` while a process works on the run.
    """
    async with hold_run(locks, store, run):
        effect = _doubtful(await store.effects(run), step, run)
        settled = replace(
            effect, status=verdict, result_json=result_json, settled_at=clock(), note="a person said so"
        )
        await store.commit(run, effects=[settled])
        return settled


def _doubtful(ledger: Sequence[EffectRecord], step: str, run: RunId) -> EffectRecord:
    may_be_key = len(step) >= SHORTEST_PREFIX  # an empty one (an unset variable) would name all
    named = [e for e in ledger if e.step == step or (may_be_key and e.idempotency_key.startswith(step))]
    found = [e for e in named if e.status in OPEN or e.lacks_result]
    doubts = [e for e in found if e.status in DOUBTFUL or e.lacks_result] or found
    if not doubts:
        raise RunNotFound(
            f"run {run} has no effect of step {step!r} in doubt: `ramify effects {run}` lists its effects"
        )
    if len(doubts) > 1:
        listed = ", ".join(f"{e.idempotency_key[:8]} on {e.branch}" for e in doubts)
        raise AmbiguousRef(f"step {step!r} is in doubt {len(doubts)} times: name one by its key ({listed})")
    return doubts[0]


async def go_back(
    services: LedgerServices, record: RunRecord, to: CheckpointRecord, steps: Mapping[str, EffectfulStep]
) -> None:
    """Take a run back to a checkpoint of its root branch: later operations count as not done.

    Later effects whose steps have a compensate hook are marked for `undo`. The others stay done, and a resume sees
    their recorded results. All of this is one transaction. The undone rows stay in the database, to be read.
    """
    if to.branch != ROOT or to.run_id != record.id:
        raise RunError(f"checkpoint {to.id} is not on the root branch of run {record.id}: name one that is")
    async with hold_run(services.locks, services.store, record.id):
        ops = await services.store.ops(record.id)
        ledger = await services.store.effects(record.id)
        kept = {row.key for row in ops if row.seq <= to.seq}
        later = [e for e in ledger if e.key not in kept and e.status is EffectStatus.DONE]
        recalled = [
            replace(e, status=EffectStatus.COMPENSATING)
            for e in later
            if _step_of(e, steps).outside.compensate is not None
        ]
        await _restore(services, record, to, ops, recalled)


async def undo(services: LedgerServices, record: RunRecord, steps: Mapping[str, EffectfulStep]) -> None:
    """Compensate the effects that a run performed after the checkpoint to which it went back, last first.

    Call this before the run continues. After a kill, or after an error in a hook (`CompensationFailed`), the next
    call does the rest.
    """
    if not _recalled(await services.store.effects(record.id)):
        return
    async with hold_run(services.locks, services.store, record.id):
        ops = await services.store.ops(record.id)
        ledger = await services.store.effects(record.id)
        journal = Journal(
            services.store,
            record,
            ops=ops,
            llm=(),
            effects=ledger,
            flush=services.snapshots.flush,
            clock=services.clock,
            emit=services.emit,
        )
        plan = Plan.from_json(record.plan_json)
        done_at = {row.key: row.seq for row in ops}
        try:
            for effect in sorted(_recalled(ledger), key=lambda e: done_at.get(e.key, math.inf), reverse=True):
                step = _step_of(effect, steps)
                if step.outside.compensate is None:
                    raise RunError(
                        f"the effect of step {effect.step!r} of run {record.id} is to be undone, but the step has no "
                        f"compensate hook any more: give it one, then `ramify resume {record.id}`"
                    )
                await compensate(journal, effect, step, plan, services.clock)
        finally:
            journal.close()


def _recalled(ledger: Sequence[EffectRecord]) -> list[EffectRecord]:
    return [effect for effect in ledger if effect.status is EffectStatus.COMPENSATING]


def _step_of(effect: EffectRecord, steps: Mapping[str, EffectfulStep]) -> EffectfulStep:
    if effect.step not in steps:
        raise RunError(
            f"step {effect.step!r} performed an effect after that checkpoint, and is not found in the workflow's "
            "module, so its compensate hook is unknown: import the step there"
        )
    return steps[effect.step]


async def _restore(
    services: LedgerServices,
    record: RunRecord,
    to: CheckpointRecord,
    ops: Sequence[OpRecord],
    recalled: Sequence[EffectRecord],
) -> None:
    """In one transaction, mark the rows after the checkpoint as undone and record a checkpoint that equals it."""
    llm = await services.store.llm(record.id)
    seq = max([row.seq for row in ops] + [row.seq for row in llm] + [to.seq]) + 1
    now = services.clock()
    row = OpRecord(
        run_id=record.id,
        seq=seq,
        key=f"restore|{seq}",
        op_id=OpId("restore"),
        kind=OpKind.RESTORE,
        branch=ROOT,
        status=OpStatus.DONE,
        snapshot_in=to.snapshot_id,
        snapshot_out=to.snapshot_id,
        started_at=now,
        ended_at=now,
        summary=f"back to checkpoint {to.id[:12]}",
        attrs={"to": to.id},
    )
    at = replace(
        to, id=checkpoint_id(record.id, seq), seq=seq, parents=(to.id,), created_at=now, label=f"back to {to.label}"
    )
    await services.store.commit(
        record.id,
        undone_after=to.seq,
        ops=[row],
        checkpoints=[at],
        effects=recalled,
        update=RunUpdate(status=RunStatus.RUNNING),
    )
