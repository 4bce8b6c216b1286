"""Performing a step: serve it, take over an equal one, or run it on its branch's world and seal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import CoroutineType
from typing import Any

from ramify.compiler.plan import Effect, OpId, OpKind, PlanOp
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.runtime import codec
from ramify.runtime.calling import StepDef, bind, call_step
from ramify.runtime.commands import StepCommands
from ramify.runtime.costs import Choice, Cost
from ramify.runtime.effects import Fence, Known
from ramify.runtime.errors import (
    Diverged,
    EffectInDoubt,
    EffectRefused,
    HiddenWrites,
    NotSerialisable,
    PlanMismatch,
    WrongReuse,
)
from ramify.runtime.events import Level, Recovered
from ramify.runtime.journal import RAISED
from ramify.runtime.prints import code_print
from ramify.runtime.records import EffectRecord, EffectStatus, OpRecord, OpStatus
from ramify.runtime.recovery import Made
from ramify.runtime.reuse import Question, compare
from ramify.runtime.run import RunScope, StepFrame, look_ahead, new_row, sealed_before
from ramify.runtime.sandbox import Sandbox
from ramify.runtime.scope import entered
from ramify.runtime.worlds import Branch
from ramify.runtime.wrote import files_written
from ramify.sandboxes.contract import World
from ramify.sandboxes.errors import SandboxError

_SUMMARY = 80
_TAIL = 800


class StepTimeout(TimeoutError):
    """A step took longer than its own timeout."""


FINAL = (EffectInDoubt, EffectRefused, HiddenWrites, WrongReuse)
"""What doing the step again does not mend."""

DOUBTFUL = (StepTimeout, NotSerialisable, SandboxError)
"""What ends a step from without: its code did not say that the effect did not happen."""


def begin_step(
    scope: RunScope, step: StepDef, op: PlanOp, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Awaitable[Any]:
    """Give out the step's key now, in program order, and return what performs it.

    Raises `PlanMismatch` where the plan has another step at this place, and `BadArguments`.
    """
    if op.kind is OpKind.RUN and op.step != step.name:
        raise PlanMismatch(
            f"the plan runs step {op.step!r} at {op.site}, but {step.name!r} was called there: "
            "the plan was compiled from other code; compile it again"
        )
    scope.run.steps[step.name] = step
    arguments = codec.encode(bind(step, args, kwargs), f"step {step.name!r}: arguments")
    args_digest = codec.digest_text(arguments)
    key = scope.run.journal.key(scope.branch.path, op.id, args_digest[:16])
    performing = _perform(_Pending(scope, step, op, key, args_digest, arguments))
    assert isinstance(performing, CoroutineType)
    performing.__qualname__ = f"step {step.name}"  # what Python warns of where it is not awaited
    return performing


@dataclass(frozen=True, slots=True)
class _Pending:
    scope: RunScope
    step: StepDef
    op: PlanOp
    key: str
    args_digest: str
    arguments: str  # encoded: each attempt gets its own copy
    aside: bool = False  # it only reads, in a world of its own on its branch's snapshot

    def fence(self) -> Fence | None:
        if self.step.effect is not Effect.IRREVERSIBLE:
            return None
        run = self.scope.run
        branch, outside = self.scope.branch.path, self.step.outside
        return Fence(run.journal, run.clock, run.record.id, self.step.name, self.key, branch, self.arguments, outside)

    def row(self, **changes: Any) -> OpRecord:
        args = {"step": self.step.name, "args_digest": self.args_digest, **changes}
        return new_row(self.scope, OpKind.RUN, self.op.id, self.key, **args)


async def _perform(pending: _Pending) -> Any:
    run, branch = pending.scope.run, pending.scope.branch
    task = asyncio.current_task()
    assert task is not None  # an awaitable runs in a task
    outer = run.working.get(task)
    run.working[task] = branch.path
    try:
        if pending.step.effect is Effect.PURE:
            return await _perform_here(pending, on_world=False)
        aside: _Pending | None = None
        async with branch.lock:
            if run.careful or pending.op.kind is OpKind.BREAK:
                await sealed_before(pending.scope, pending.key)
            reads = pending.step.effect is Effect.READONLY or "beside" in pending.op.attrs
            if reads and await _is_all_sealed(branch):
                beside = Branch(branch.path, branch.snapshot, branch.checkpoint, made=list(branch.made))
                aside = replace(pending, aside=True, scope=replace(pending.scope, branch=beside))
            if aside is None or not pending.op.attrs.get("beside"):
                return await _perform_on(aside or pending)
        return await _perform_on(aside)
    finally:
        del run.working[task]
        if outer is not None:
            run.working[task] = outer


async def _is_all_sealed(branch: Branch) -> bool:
    """Whether the branch's snapshot is all that its world holds, so that a fork of it is as good."""
    if branch.unsealed or branch.lost:
        return False
    return branch.world is None or not await branch.world.background_processes()


async def _perform_on(pending: _Pending) -> Any:
    try:
        return await _perform_here(pending, on_world=True)
    finally:
        if pending.aside:  # whatever it left there goes with it
            await pending.scope.run.worlds.drop(pending.scope.branch)


async def _perform_here(pending: _Pending, *, on_world: bool) -> Any:
    run, branch = pending.scope.run, pending.scope.branch
    if (row := run.journal.served(pending.key, at=branch.snapshot if on_world else None)) is not None:
        if row.snapshot_out is not None:
            sealed = run.journal.served(_seal_key(pending))
            if sealed is not None:
                branch.checkpoint = run.journal.checkpoint_of(sealed)
            if row.snapshot_out != branch.snapshot.id:
                now = await run.recovery.get(row.snapshot_out, sealed.result_digest if sealed is not None else "")
                branch.stands(_made(pending, now, row))
        branch.served_s += row.ended_at - row.started_at if on_world else 0.0
        return codec.decode(row.result_json or "null")
    if (raised := run.journal.failed(pending.key, at=branch.snapshot if on_world else None)) is not None:
        raise raised
    if pending.step.effect is Effect.IRREVERSIBLE and run.journal.knows(pending.key):
        raise Diverged(
            f"step {pending.step.name!r} on branch {branch.path} is irreversible and was done, but in another state "
            "than the branch stands in now, so its result does not fit and it is not done again. "
            "The order of a workflow's calls must not depend on timing"
        )
    if not on_world:
        look_ahead(pending.scope, pending.op)
    question = _question(pending) if on_world else None
    if question is None:
        return await _execute(pending, None, on_world=on_world)
    async with run.reuse.alone(question):
        checked = run.reuse.to_be_checked()
        async with run.reuse.pins.held():
            begun, source = time.perf_counter(), await run.reuse.find(question)
            if source is not None and not checked:
                state = await run.reuse.applied(source, branch.snapshot)
                if state is not None:
                    return await _take_over(pending, question, source, state, begun)
        return await _execute(pending, question, on_world=True, expected=source if checked else None)


def _question(pending: _Pending) -> Question | None:
    """What the step is about to compute, from its code, its inputs and the state of its world; None where it may not
    be reused. Where no print covers all that it can see, the run bounds the reuse."""
    run, branch = pending.scope.run, pending.scope.branch
    planned = run.plan.step(pending.step.name)
    if pending.op.kind is OpKind.RUN and "shared" not in pending.op.attrs:
        return None
    if not pending.step.reuse or planned is None or branch.unsealed or branch.snapshot.tier is not ProcessTier.NONE:
        return None
    if not branch.snapshot.content_key:
        return None  # something that nobody declared runs in the world: no key says what the step would meet
    around = (run.reuse.environment, code_print(pending.step.function))
    scope = [f"run {run.record.id}"] if None in around else list(around)
    operation = ["step", scope, pending.step.name, planned.code_digest, pending.args_digest]
    return Question(codec.digest(operation), branch.snapshot)


async def _take_over(
    pending: _Pending, question: Question, source: OpRecord, snapshot: Snapshot, begun: float
) -> Any:
    """Another branch, or another run, was in this state with these inputs: take its result and its world's change."""
    run, branch = pending.scope.run, pending.scope.branch
    layers, now = len(snapshot.layers), run.clock()
    restore = run.costs.predict(Cost.RESTORE, size=layers)
    choice = Choice("take over", restore, run.costs.predict(Cost.RECOMPUTE, name=pending.step.name))
    took = time.perf_counter() - begun
    run.costs.observe(Cost.RESTORE, took, size=layers)
    row = pending.row(
        result_json=source.result_json,
        result_digest=source.result_digest,
        snapshot_in=branch.snapshot.id,
        snapshot_out=snapshot.id,
        lineage_key=question.lineage_key,
        reused_from=f"{source.run_id}#{source.seq}",
        started_at=now,
        ended_at=now,
        summary=source.summary,
        attrs={**choice.attrs(took), "layers": str(layers)},
    )
    await _commit(pending, row, snapshot)
    return codec.decode(source.result_json or "null")


async def _execute(
    pending: _Pending, question: Question | None, *, on_world: bool, expected: OpRecord | None = None
) -> Any:
    async with AsyncExitStack() as held:
        return await _execute_and_commit(pending, question, on_world=on_world, expected=expected, held=held)


async def _execute_and_commit(
    pending: _Pending, question: Question | None, *, on_world: bool, expected: OpRecord | None, held: AsyncExitStack
) -> Any:
    """Run the step's code, again as often as `retry` says, each time from the state where it began.

    An attempt that does not come to its end (it raised, was cancelled, gave what cannot be kept, or lost its world)
    leaves nothing: its world is dropped with all that still runs in it. `expected`: a row that is to be checked.
    `held` gets the pin that keeps what is sealed until it is committed.
    """
    run, branch, fence = pending.scope.run, pending.scope.branch, pending.fence()
    begun, entry = run.clock(), branch.snapshot
    attempt, recovered = 0, dict[str, str]()
    while True:
        face: Sandbox | None = None
        result_json: str | None = None
        try:
            world, fork_s = await run.worlds.acquire(branch) if on_world else (None, None)
            recovered |= _recovered(pending, world, fork_s)
            face = Sandbox(world, _commands(pending, attempt)) if world is not None else None
            if fence is not None and (known := await fence.open()) is not None:
                return await _accept(pending, fence, known, begun)
            result_json, value = await _attempt(pending, face, attempt)
            sealed, timings = await _seal(pending, world, fork_s, held)
            if expected is not None:
                was = await run.reuse.applied(expected, entry)
                compare(expected, f"step {pending.step.name!r}", codec.digest_text(result_json), was, sealed)
            break
        except BaseException as error:
            await held.aclose()
            if on_world:
                await run.worlds.drop(branch)
            if fence is not None:
                await _after_error(fence, error, result_json)
            if not isinstance(error, Exception):
                raise
            if attempt < pending.step.retry and not branch.lost and not isinstance(error, FINAL):
                attempt += 1
                why = f"step {pending.step.name!r}: {type(error).__name__}: {error}"
                run.recovery.emit(Recovered(run.record.id, branch.path, Level.RETRY, why, run.clock() - begun))
                continue
            await _record_failure(pending, error, face, begun, entry if on_world else None)
            raise
    row = pending.row(
        result_json=result_json,
        result_digest=codec.digest_text(result_json),
        snapshot_in=entry.id if on_world else None,
        snapshot_out=sealed.id if sealed is not None else None,
        lineage_key=question.lineage_key if question is not None and _can_be_taken(sealed) else None,
        started_at=begun,
        ended_at=run.clock(),
        summary=_one_line(value),
        attrs={
            **timings,
            **recovered,
            **({"attempt": str(attempt)} if attempt else {}),
            **({} if fence is None else _behind(pending)),
        },
    )
    run.costs.learn([row])
    if world is not None and sealed is None:
        branch.unsealed = True
    await _commit(pending, row, sealed, None if fence is None else fence.done(result_json))
    if world is not None:
        await run.worlds.rest(branch)
    return value


def _recovered(pending: _Pending, world: World | None, fork_s: float | None) -> dict[str, str]:
    """How the branch of a resumed run got its world back, for the row and for who listens; nothing where it had one.

    Computing again what the journal answered for would have given the same state: that is the alternative.
    """
    run, branch = pending.scope.run, pending.scope.branch
    if world is None or fork_s is None:
        return {}
    served, branch.served_s = branch.served_s, 0.0
    if (again := run.recovery.again.pop(branch.path, None)) is not None:
        return Choice("compute again", again.predicted_s, None).attrs(again.took_s)
    if not served:
        return {}
    layers = len(world.snapshot.layers)
    why = (
        f"state {branch.snapshot.id[:12]} is whole: {layers} layers mounted, in place of the {served:.2f} s that the "
        "steps before it took"
    )
    run.recovery.emit(Recovered(run.record.id, branch.path, Level.RESTORE, why, fork_s))
    return Choice("restore", run.costs.predict(Cost.FORK, size=layers), served).attrs(fork_s)


async def _seal(
    pending: _Pending, world: World | None, fork_s: float | None, held: AsyncExitStack
) -> tuple[Snapshot | None, dict[str, str]]:
    """The world's new state, None where the plan seals nothing here; and what fork and seal took, for the row."""
    run, timings = pending.scope.run, dict[str, str]()
    if fork_s is not None and world is not None:
        timings |= {"fork_ms": f"{fork_s * 1000:.3f}", "layers": str(len(world.snapshot.layers))}
    if world is not None and pending.aside and pending.step.effect is not Effect.READONLY:
        await _refuse_changes(pending, world)
    if world is None or pending.aside or run.seal_op(pending.op) is None:
        return pending.scope.branch.snapshot if pending.aside else None, timings
    await held.enter_async_context(run.reuse.pins.held())
    before, begun = world.snapshot, time.perf_counter()
    held.enter_context(run.journal.ending(pending.scope.branch.path))  # what it seals is flushed with its row
    sealed = await world.seal(flush=False)
    if sealed.layers != before.layers:
        held_bytes = await asyncio.to_thread(run.snapshots.layer_bytes, sealed.layers[-1])
        timings |= {"seal_ms": f"{(time.perf_counter() - begun) * 1000:.3f}", "sealed_bytes": str(held_bytes)}
        timings |= files_written(run.snapshots, before, sealed)
    return sealed, timings


async def _refuse_changes(pending: _Pending, world: World) -> None:
    """The compiler saw it write nothing; what it did write, by code that the compiler does not see into, must not be
    lost quietly."""
    before = world.snapshot
    async with pending.scope.run.reuse.pins.held():
        after = await world.seal(flush=False)
    if after.content_key != before.content_key:
        raise HiddenWrites(
            f"step {pending.step.name!r} ran beside others, since its own code writes to no file, but something that "
            'it calls does: declare it, @step(effect="revertible"), and run it again'
        )


def _can_be_taken(sealed: Snapshot | None) -> bool:
    """Whether the state that a step left is all that it left: not where it left something running."""
    return sealed is not None and bool(sealed.content_key) and sealed.tier is ProcessTier.NONE


def _behind(pending: _Pending) -> dict[str, str]:
    """The plan's BARRIER of an irreversible step, which its fence performed: the intent was durable before it."""
    irreversible = pending.step.effect is Effect.IRREVERSIBLE
    barrier = pending.scope.run.plan.before(pending.op, OpKind.BARRIER) if irreversible else None
    return {} if barrier is None else {"barrier": barrier.id}


def _commands(pending: _Pending, attempt: int) -> StepCommands:
    def blank(kind: OpKind, op: OpId, key: str) -> OpRecord:
        return new_row(pending.scope, kind, op, key)

    return StepCommands(pending.scope.run, f"{pending.key}|a{attempt}", pending.op.id, blank)


async def _accept(pending: _Pending, fence: Fence, known: Known, begun: float) -> Any:
    """The effect took place before: its result stands, and the world stays as it was before the step."""
    run, branch = pending.scope.run, pending.scope.branch
    result = codec.decode(known.result_json)
    row = pending.row(
        result_json=known.result_json,
        result_digest=codec.digest_text(known.result_json),
        snapshot_in=branch.snapshot.id,
        snapshot_out=branch.snapshot.id,
        started_at=begun,
        ended_at=run.clock(),
        summary=_one_line(result),
        attrs={"effect": known.how},
    )
    await run.journal.record(row, effect=None if known.elsewhere else fence.done(known.result_json, known.how))
    await run.worlds.rest(branch)
    return result


async def _after_error(fence: Fence, error: BaseException, result_json: str | None) -> None:
    """What the ledger can say of an effect whose step did not come to its end."""
    now = fence.journal.effect(fence.key)
    if now is None or now.status is not EffectStatus.INTENDED:
        return  # it was never begun, or stands in doubt already
    if result_json is not None:
        await fence.journal.settle(fence.done(result_json))  # it happened; what failed is the seal after it
    elif isinstance(error, Exception) and not isinstance(error, DOUBTFUL):
        await fence.journal.settle(fence.failed(error))
    else:
        await fence.doubt(f"the step was ended by {type(error).__name__}")


async def _attempt(pending: _Pending, face: Sandbox | None, attempt: int) -> tuple[str, Any]:
    """The result as the journal keeps it, and as a resumed run would see it."""
    step = pending.step
    limit = asyncio.timeout(step.timeout)
    try:
        async with limit:
            result_json = codec.encode(await _call(pending, face, attempt), f"step {step.name!r}: its result")
    except TimeoutError as error:
        if limit.expired():
            raise StepTimeout(f"step {step.name!r} took longer than its timeout of {step.timeout:g} s") from error
        raise
    finally:
        if face is not None:
            face.end()
    return result_json, codec.decode(result_json)


async def _commit(
    pending: _Pending, row: OpRecord, sealed: Snapshot | None, effect: EffectRecord | None = None
) -> None:
    """The step's row, its effect and, where its world changed, the SEAL and its checkpoint: one transaction."""
    run, branch = pending.scope.run, pending.scope.branch
    seal_op = run.seal_op(pending.op)
    if sealed is None or seal_op is None or (sealed.id == branch.snapshot.id and not branch.unsealed):
        await run.journal.record(row, effect=effect)
    else:
        seal = replace(
            row,
            key=_seal_key(pending),
            op_id=seal_op.id,
            kind=OpKind.SEAL,
            result_json=None,
            result_digest=sealed.content_key,
            lineage_key=None,
            started_at=row.ended_at,
            attrs={"tier": sealed.tier.value},
        )
        await run.journal.record(row, seal, checkpoint=(branch, sealed, pending.step.name), effect=effect)
    if sealed is not None:
        branch.stands(_made(pending, sealed, row))
        branch.unsealed = False


def _made(pending: _Pending, snapshot: Snapshot, row: OpRecord) -> Made:
    """The state after a step, which the step itself makes again, unless doing it twice could be seen outside."""
    step, run = pending.step, pending.scope.run
    what, attempt = f"step {step.name!r}", int(row.attrs.get("attempt", 0))
    if step.effect is Effect.IRREVERSIBLE and not (step.outside.idempotent or step.reuse):
        return Made(snapshot, what, refused="it is irreversible and not declared to be repeatable")
    if step.effect is Effect.UNKNOWN and not step.reuse:
        return Made(snapshot, what, refused="its effect is unknown and it is not declared to be repeatable")

    async def again(before: Snapshot) -> Snapshot:
        world = await run.worlds.fresh(before)
        try:
            face = Sandbox(world)
            try:
                await _call(pending, face, attempt)  # what it asked of a model is served from the journal
            finally:
                face.end()
            return await run.recovery.sealed(world.seal)
        finally:
            await world.close()

    return Made(snapshot, what, again, seconds=row.ended_at - row.started_at)


def _seal_key(pending: _Pending) -> str:
    return f"{pending.key}|SEAL"


async def _call(pending: _Pending, face: Sandbox | None, attempt: int) -> Any:
    scope = replace(pending.scope, step=StepFrame(pending.step.name, pending.key, pending.op, face, attempt))
    pending.scope.run.journal.forget_place(f"{pending.key}|a{attempt}")
    with entered(scope):
        return await call_step(pending.step, codec.decode(pending.arguments), face)


async def _record_failure(
    pending: _Pending, error: Exception, face: Sandbox | None, begun: float, entry: Snapshot | None
) -> None:
    """A row for people to read, and the same as a note on the error. A resume honours it only where the run had come
    to wait for a person by then."""
    run = pending.scope.run
    shown = f"{type(error).__name__}: {error}"
    where = f"step {pending.step.name!r} on branch {pending.scope.branch.path}"
    last = ""
    if face is not None and face.last is not None:
        tail = (face.last.stdout + face.last.stderr)[-_TAIL:].strip()
        last = f"; its last command {face.last.command!r} exited with {face.last.exit_code}" + (
            f":\n{tail}" if tail else ""
        )
    error.add_note(f"raised in {where}, on the world of snapshot {entry.id[:12] if entry else '(none)'}{last}")
    await run.journal.record(
        pending.row(
            status=OpStatus.FAILED,
            error=shown,
            snapshot_in=entry.id if entry else None,
            started_at=begun,
            summary=shown.splitlines()[0][:_SUMMARY],
            attrs={**({"last_output": last} if last else {}), **_kept(error)},
        )
    )
    if not hasattr(error, "__ramify_step__"):
        error.__ramify_step__ = (pending.step.name, pending.scope.branch.path)  # type: ignore[attr-defined]


def _kept(error: Exception) -> dict[str, str]:
    try:
        return {RAISED: codec.encode(error)}
    except NotSerialisable:
        return {}


def _one_line(value: object) -> str:
    if value is None:
        return ""
    lines = str(value).splitlines()
    return lines[0][:_SUMMARY] if lines else ""
