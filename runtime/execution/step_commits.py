"""Seal a step's world and commit its rows: before the workflow goes on, or behind it while the model answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.compiler.plan import Effect, OpKind, Plan, PlanOp
from ramify.fork_engine import crash_points
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.runtime.errors import HiddenWrites
from ramify.runtime.estimates.recorded_runs import files_written
from ramify.runtime.execution.step_call import StepCall, run_code
from ramify.runtime.execution.step_outcomes import one_line
from ramify.runtime.records import EffectRecord, OpRecord
from ramify.runtime.user_code.sandbox import Sandbox
from ramify.runtime.worlds.pinned_seal import sealed as sealed_world
from ramify.runtime.worlds.world_pool import StateOrigin
from ramify.sandboxes.contract import World

NODE = "node"
"""The attribute of a step's row that names the machine where it ran, if that was another one."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What a step's code has given, before its world is sealed."""

    result_json: str
    result_digest: str
    value: Any
    entry: Snapshot | None  # where it began; None for a step without a world
    begun: float
    lineage_key: str | None  # of its reuse query
    attrs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BegunSeal:
    """A seal that goes on: the state before it, when it was begun, and the state that it makes."""

    before: Snapshot
    begun: float
    sealing: Awaitable[Snapshot]

    @classmethod
    async def of(cls, world: World) -> BegunSeal:
        before, begun = world.snapshot, time.perf_counter()
        return cls(before, begun, await world.begin_seal())


async def seal_world(
    call: StepCall,
    world: World | None,
    fork_s: float | None,
    held: AsyncExitStack,
    seal: BegunSeal | None = None,
) -> tuple[Snapshot | None, dict[str, str]]:
    """Seal the world after a step. Returns its snapshot, None if the plan has no seal here, and row attributes with
    the times of fork and seal.

    seal: if it was begun already. Then `held` has the pins.
    """
    run, timings = call.scope.run, dict[str, str]()
    if fork_s is not None and world is not None:
        timings |= {"fork_ms": f"{fork_s * 1000:.3f}", "layers": str(len(world.snapshot.layers))}
    if world is not None and call.aside and call.step.effect is not Effect.READONLY:
        await _refuse_changes(call, world)
    if world is None or call.aside or run.seal_op(call.op) is None:
        return call.scope.branch.snapshot if call.aside else None, timings
    if seal is None:
        await held.enter_async_context(run.reuse.pins.held())
        seal = BegunSeal(world.snapshot, time.perf_counter(), world.seal(flush=False))
    held.enter_context(run.journal.ending(call.scope.branch.path))  # the seal is flushed when the row is committed
    before, sealed = seal.before, await seal.sealing
    return sealed, timings | await attrs_of_seal(run.snapshots, before, sealed, time.perf_counter() - seal.begun)


async def attrs_of_seal(
    snapshots: SnapshotStore, before: Snapshot, sealed: Snapshot, seconds: float
) -> dict[str, str]:
    """Return the row attributes that tell what a seal wrote, and how long it took."""
    if sealed.layers == before.layers:
        return {}
    held_bytes = await asyncio.to_thread(snapshots.layer_bytes, sealed.layers[-1])
    timings = {"seal_ms": f"{seconds * 1000:.3f}", "sealed_bytes": str(held_bytes)}
    return timings | files_written(snapshots, before, sealed)


async def _refuse_changes(call: StepCall, world: World) -> None:
    """Raise `HiddenWrites` if a step that the compiler considers read-only changed files: its changes must not be
    lost."""
    before = world.snapshot
    async with call.scope.run.reuse.pins.held():
        after = await sealed_world(world, call.scope.run.reuse.pins)
    if after.content_key != before.content_key:
        raise HiddenWrites(
            f"step {call.step.name!r} ran in parallel with others, because its code writes no files, but something "
            'that it calls does: it is run again, by itself. Declare it with @step(effect="revertible")'
        )


def is_reusable_state(sealed: Snapshot | None) -> bool:
    """Whether the snapshot is the step's whole result, so that it can be reused: no process was left running."""
    return sealed is not None and bool(sealed.content_key) and sealed.tier is ProcessTier.NONE


async def commit_executed(
    call: StepCall,
    done: Executed,
    world: World | None,
    sealed: Snapshot | None,
    effect: EffectRecord | None = None,
) -> None:
    """Commit a step whose code has run and whose world is sealed."""
    run, branch = call.scope.run, call.scope.branch
    row = call.row(
        result_json=done.result_json,
        result_digest=done.result_digest,
        snapshot_in=done.entry.id if done.entry is not None else None,
        snapshot_out=sealed.id if sealed is not None else None,
        lineage_key=done.lineage_key if is_reusable_state(sealed) else None,
        started_at=done.begun,
        ended_at=run.clock(),
        summary=one_line(done.value),
        attrs=done.attrs,
    )
    run.costs.learn([row])
    if world is not None and sealed is None:
        branch.unsealed = True
    await commit_step(call, row, sealed, effect)
    if world is not None:
        await run.worlds.rest(branch)


async def commit_step(
    call: StepCall, row: OpRecord, sealed: Snapshot | None, effect: EffectRecord | None = None
) -> None:
    """Commit the step's row, its effect and, if its world changed, the SEAL row and its checkpoint: one
    transaction."""
    run, branch = call.scope.run, call.scope.branch
    elsewhere = NODE in row.attrs  # a state that travels is sealed, whatever the plan says
    seal_op = run.seal_op(call.op) or (run.plan.catch_all if elsewhere else None)
    records: Coroutine[Any, Any, None]
    if sealed is None or seal_op is None or (sealed.id == branch.snapshot.id and not branch.unsealed):
        records = run.journal.record(row, effect=effect)
    else:
        kept = {} if elsewhere else run.worlds.made(seal_op, branch.path, sealed)
        seal = replace(
            row,
            key=call.seal_key,
            op_id=seal_op.id,
            kind=OpKind.SEAL,
            result_json=None,
            result_digest=sealed.content_key,
            lineage_key=None,
            started_at=row.ended_at,
            attrs={"tier": sealed.tier.value, **kept},
        )
        records = run.journal.record(row, seal, checkpoint=(branch, sealed, call.step.name), effect=effect)
    cancelled: asyncio.CancelledError | None = None
    try:
        await records
    except asyncio.CancelledError as error:
        if not run.journal.knows(row.key):
            raise
        cancelled = error  # the rows were committed all the same, so the branch is in the state after the step
    if sealed is not None:
        branch.stands(state_after(call, sealed, row))
        branch.unsealed = False
    if cancelled is not None:
        raise cancelled


def state_after(call: StepCall, snapshot: Snapshot, row: OpRecord) -> StateOrigin:
    """Return the state after a step and how to recompute it: by running the step again, unless that could repeat an
    effect."""
    step, run = call.step, call.scope.run
    what, attempt = f"step {step.name!r}", int(row.attrs.get("attempt", 0))
    if step.effect is Effect.IRREVERSIBLE and not step.outside.idempotent:
        return StateOrigin(snapshot, what, refused="it is irreversible and not declared to be repeatable")
    if step.effect is Effect.UNKNOWN and not step.reuse:
        return StateOrigin(snapshot, what, refused="its effect is unknown and it is not declared to be repeatable")

    async def again(before: Snapshot) -> Snapshot:
        world = await run.worlds.fresh(before)
        try:
            face = Sandbox(world)
            try:
                await run_code(call, face, attempt)  # its model calls are served from the journal
            finally:
                face.end()
            return await run.recovery.sealed(world.seal)
        finally:
            await world.close()

    return StateOrigin(snapshot, what, again, seconds=row.ended_at - row.started_at)


# Behind the workflow

_ASKS = (OpKind.CALL_LLM,)
_DOES = (*_ASKS, OpKind.RUN, OpKind.CALL_TOOL, OpKind.BREAK, OpKind.FORK, OpKind.MERGE, OpKind.INTERRUPT)
"""Operations that a workflow calls. The others belong to them."""


def may_commit_behind(call: StepCall) -> bool:
    """Whether the step may be committed while the workflow goes on: the plan says that the model is asked next, and
    nothing else is under way, whose row could come before this step's."""
    run = call.scope.run
    alone = (
        not run.at_work and not run.calls.under_way and not run.journal.turns.waiting and set(run.begun) == {call.key}
    )
    return alone and not call.aside and run.seal_op(call.op) is not None and asks_model_next(run.plan, call.op)


def asks_model_next(plan: Plan, op: PlanOp) -> bool:
    """Whether on every path of the plan a model call follows this operation before any other."""
    blocks, kinds_of = {block.id: block for block in plan.blocks}, {one.id: one.kind for one in plan.ops}
    todo = [(block, block.ops.index(op.id) + 1) for block in plan.blocks if op.id in block.ops]
    seen: set[str] = set()
    found = False
    while todo:
        block, begin = todo.pop()
        following = next((kind for name in block.ops[begin:] if (kind := kinds_of.get(name)) in _DOES), None)
        if following is None:
            if not block.exits:
                return False  # the workflow returns
            todo += [(blocks[to], 0) for to, _ in block.exits if to not in seen and to in blocks]
            seen.update(to for to, _ in block.exits)
        elif following not in _ASKS:
            return False
        else:
            found = True
    return found


async def begin_commit_behind(
    call: StepCall, done: Executed, world: World, fork_s: float | None, held: AsyncExitStack
) -> None:
    """Begin the seal of the step's world, and let it and the commit go on behind the workflow. Until the commit no
    other step begins, and the branch's lock is held. `held` moves along.

    If that fails, the run ends with the error. A resume runs the step again.
    """
    run, branch = call.scope.run, call.scope.branch

    async def commit(mine: AsyncExitStack, seal: BegunSeal) -> None:
        async with mine, branch.lock:
            try:
                sealed, timings = await seal_world(call, world, fork_s, mine, seal)
                await commit_executed(call, replace(done, attrs={**done.attrs, **timings}), world, sealed)
            except BaseException as error:
                run.journal.stop(error)
                await run.worlds.drop(branch)
                raise

    with run.journal.behind.announced():
        await held.enter_async_context(run.reuse.pins.held())
        seal = await BegunSeal.of(world)
        crash_points.point("seal begun")
        run.journal.behind.begin(commit(held.pop_all(), seal))
