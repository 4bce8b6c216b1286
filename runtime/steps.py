"""Performing a step: serve it, take over an equal one, or run it on its branch's world and seal."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from ramify.compiler.plan import Effect, OpKind, PlanOp
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.types import Snapshot
from ramify.runtime import codec
from ramify.runtime.records import OpRecord, OpStatus
from ramify.runtime.run import RunScope, StepFrame
from ramify.runtime.sandbox import Sandbox, SyncSandbox
from ramify.runtime.scope import entered

_SUMMARY = 80
_TAIL = 800


@dataclass(frozen=True, slots=True)
class StepDef:
    """A step as its decorator describes it."""

    name: str
    function: Callable[..., Any]
    effect: Effect
    sandbox_parameter: str | None
    reuse: bool = False
    retry: int = 0
    timeout: float | None = None


def begin_step(
    scope: RunScope, step: StepDef, op: PlanOp, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Awaitable[Any]:
    """Give out the step's key now, in program order, and return what performs it."""
    bound = _bind(step, args, kwargs)
    args_digest = codec.digest(bound)
    key = scope.run.journal.key(scope.branch.path, op.id, args_digest[:16])
    return _perform(_Pending(scope, step, op, key, args_digest, bound))


@dataclass(frozen=True, slots=True)
class _Pending:
    scope: RunScope
    step: StepDef
    op: PlanOp
    key: str
    args_digest: str
    bound: dict[str, Any]

    def row(self, **changes: Any) -> OpRecord:
        blank = OpRecord(
            run_id=self.scope.run.record.id,
            seq=0,
            key=self.key,
            op_id=self.op.id,
            kind=OpKind.RUN,
            branch=self.scope.branch.path,
            status=OpStatus.DONE,
            step=self.step.name,
            args_digest=self.args_digest,
        )
        return replace(blank, **changes)


def _bind(step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, defaults filled in, the world left out: what the result depends on."""
    signature = inspect.signature(step.function)
    kept = [p for name, p in signature.parameters.items() if name != step.sandbox_parameter]
    bound = signature.replace(parameters=kept).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


async def _perform(pending: _Pending) -> Any:
    branch = pending.scope.branch
    if pending.step.effect is Effect.PURE:
        return await _perform_here(pending, on_world=False)
    async with branch.lock:
        return await _perform_here(pending, on_world=True)


async def _perform_here(pending: _Pending, *, on_world: bool) -> Any:
    run, branch = pending.scope.run, pending.scope.branch
    if (row := run.journal.served(pending.key)) is not None:
        if row.snapshot_out is not None:
            branch.snapshot = await asyncio.to_thread(run.snapshots.get, row.snapshot_out)
            if (sealed := run.journal.served(_seal_key(pending))) is not None:
                branch.checkpoint = run.journal.checkpoint_of(sealed)
        return codec.decode(row.result_json or "null")
    lineage = _lineage_key(pending) if on_world else None
    if lineage is None:
        return await _execute(pending, None, on_world=on_world)
    # Single flight: an equal step that another branch computes at this moment is waited for, not done again.
    while (flying := run.computing.get(lineage)) is not None:
        await asyncio.wait([flying])
    if (known := run.reusable.get(lineage)) is not None:
        return await _take_over(pending, lineage, known)
    run.computing[lineage] = asyncio.get_running_loop().create_future()
    try:
        return await _execute(pending, lineage, on_world=True)
    finally:
        run.computing.pop(lineage).set_result(None)


def _lineage_key(pending: _Pending) -> str | None:
    """Digest of step code, inputs and the state of the world; None where the step may not be reused.

    Declared reuse is bounded by the run: what the host's own files hold is not in the key.
    """
    planned = pending.scope.run.plan.step(pending.step.name)
    if not pending.step.reuse or planned is None or pending.scope.branch.unsealed:
        return None
    state = pending.scope.branch.snapshot.content_key
    run_id = pending.scope.run.record.id
    return codec.digest([run_id, pending.step.name, planned.code_digest, pending.args_digest, state])


async def _take_over(pending: _Pending, lineage: str, known: str) -> Any:
    """Another branch was in this state with these inputs: take its result and its world's change."""
    run, branch = pending.scope.run, pending.scope.branch
    source = run.journal.row(known)
    snapshot = branch.snapshot
    if source.snapshot_out is not None and source.snapshot_out != source.snapshot_in:
        try:
            snapshot = await asyncio.to_thread(run.snapshots.get, source.snapshot_out)
        except SnapshotNotFound:
            return await _execute(pending, lineage, on_world=True)  # its layers are gone: do it again
    now = run.clock()
    row = pending.row(
        result_json=source.result_json,
        result_digest=source.result_digest,
        snapshot_in=branch.snapshot.id,
        snapshot_out=snapshot.id,
        lineage_key=lineage,
        reused_from=f"{source.run_id}#{source.seq}",
        started_at=now,
        ended_at=now,
        summary=source.summary,
    )
    await _commit(pending, row, snapshot)
    return codec.decode(source.result_json or "null")


async def _execute(pending: _Pending, lineage: str | None, *, on_world: bool) -> Any:
    """Run the step's code, again as often as `retry` says, each time from the state where it began."""
    run, branch = pending.scope.run, pending.scope.branch
    begun = run.clock()
    attempt = 0
    while True:
        entry = branch.snapshot
        world, fork_s = await run.worlds.acquire(branch) if on_world else (None, None)
        face = Sandbox(world) if world is not None else None
        try:
            value = await _call(pending, face, attempt)
            break
        except Exception as error:
            can_roll_back = on_world and not branch.unsealed
            if can_roll_back and world is not None:
                await world.rollback(entry)
            if attempt < pending.step.retry and (can_roll_back or not on_world):
                attempt += 1
                continue
            await _record_failure(pending, error, face, begun, entry if on_world else None)
            raise
    result_json = codec.encode(value)
    row = pending.row(
        result_json=result_json,
        result_digest=codec.digest_text(result_json),
        snapshot_in=branch.snapshot.id if on_world else None,
        lineage_key=lineage,
        started_at=begun,
        summary=_one_line(value),
        attrs={} if fork_s is None else {"fork_ms": f"{fork_s * 1000:.3f}"},
    )
    sealed = None
    if world is not None:
        sealed = await world.seal() if run.seal_op(pending.op) is not None else None
        if sealed is None:
            branch.unsealed = True
    out = sealed.id if sealed is not None else None
    await _commit(pending, replace(row, snapshot_out=out, ended_at=run.clock()), sealed)
    if world is not None:
        await run.worlds.rest(branch)
    return value


async def _commit(pending: _Pending, row: OpRecord, sealed: Snapshot | None) -> None:
    """The step's row and, where its world changed, the SEAL and its checkpoint: one transaction."""
    run, branch = pending.scope.run, pending.scope.branch
    seal_op = run.seal_op(pending.op)
    if sealed is None or seal_op is None or (sealed.id == branch.snapshot.id and not branch.unsealed):
        await run.journal.record(row)
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
        await run.journal.record(row, seal, checkpoint=(branch, sealed, pending.step.name))
    if sealed is not None:
        branch.snapshot, branch.unsealed = sealed, False
    if row.lineage_key is not None and row.reused_from is None:
        run.reusable[row.lineage_key] = row.key


def _seal_key(pending: _Pending) -> str:
    return f"{pending.key}|SEAL"


async def _call(pending: _Pending, face: Sandbox | None, attempt: int) -> Any:
    step = pending.step
    scope = replace(pending.scope, step=StepFrame(step.name, pending.key, pending.op, face, attempt))
    pending.scope.run.journal.forget_place(f"{pending.key}|a{attempt}")
    arguments = dict(pending.bound)
    async with asyncio.timeout(step.timeout):
        with entered(scope):
            if inspect.iscoroutinefunction(step.function):
                if step.sandbox_parameter is not None:
                    arguments[step.sandbox_parameter] = face
                return await call_bound(step.function, arguments)
            if step.sandbox_parameter is not None and face is not None:
                arguments[step.sandbox_parameter] = SyncSandbox(face, asyncio.get_running_loop())
            return await asyncio.to_thread(call_bound, step.function, arguments)


def call_bound(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call with arguments by name, positional-only and variadic parameters included."""
    signature = inspect.signature(function)
    bound = signature.bind_partial()
    bound.arguments.update({name: arguments[name] for name in signature.parameters if name in arguments})
    return function(*bound.args, **bound.kwargs)


async def _record_failure(
    pending: _Pending, error: Exception, face: Sandbox | None, begun: float, entry: Snapshot | None
) -> None:
    """A row for people to read (a resume does not honour it), and the same as a note on the error."""
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
            ended_at=run.clock(),
            summary=shown.splitlines()[0][:_SUMMARY],
            attrs={"last_output": last} if last else {},
        )
    )
    if not hasattr(error, "__ramify_step__"):
        error.__ramify_step__ = (pending.step.name, pending.scope.branch.path)  # type: ignore[attr-defined]


def _one_line(value: object) -> str:
    if value is None:
        return ""
    lines = str(value).splitlines()
    return lines[0][:_SUMMARY] if lines else ""
