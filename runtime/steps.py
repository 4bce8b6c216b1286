"""Performing a step: serve it, take over an equal one, or run it on its branch's world and seal."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from ramify.compiler.plan import Effect, OpKind, PlanOp
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.runtime import codec
from ramify.runtime.errors import BadArguments, Diverged, PlanMismatch
from ramify.runtime.records import OpRecord, OpStatus
from ramify.runtime.run import RunScope, StepFrame, new_row
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
    """Give out the step's key now, in program order, and return what performs it.

    Raises `PlanMismatch` where the plan has another step at this place, and `BadArguments`.
    """
    if op.kind is OpKind.RUN and op.step != step.name:
        raise PlanMismatch(
            f"the plan runs step {op.step!r} at {op.site}, but {step.name!r} was called there: "
            "the plan was compiled from other code; compile it again"
        )
    arguments = codec.encode(_bind(step, args, kwargs))
    args_digest = codec.digest_text(arguments)
    key = scope.run.journal.key(scope.branch.path, op.id, args_digest[:16])
    return _perform(_Pending(scope, step, op, key, args_digest, arguments))


@dataclass(frozen=True, slots=True)
class _Pending:
    scope: RunScope
    step: StepDef
    op: PlanOp
    key: str
    args_digest: str
    arguments: str  # encoded: each attempt gets its own copy

    def row(self, **changes: Any) -> OpRecord:
        args = {"step": self.step.name, "args_digest": self.args_digest, **changes}
        return new_row(self.scope, OpKind.RUN, self.op.id, self.key, **args)


def _bind(step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, defaults filled in, the world left out: what the result depends on."""
    signature = inspect.signature(step.function)
    kept = [p for name, p in signature.parameters.items() if name != step.sandbox_parameter]
    try:
        bound = signature.replace(parameters=kept).bind(*args, **kwargs)
    except TypeError as error:
        raise BadArguments(f"step {step.name}{signature.replace(parameters=kept)}: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


async def _perform(pending: _Pending) -> Any:
    run, branch = pending.scope.run, pending.scope.branch
    task = asyncio.current_task()
    assert task is not None  # an awaitable runs in a task
    outer = run.working.get(task)
    run.working[task] = branch.path
    try:
        if pending.step.effect is Effect.PURE:
            return await _perform_here(pending, on_world=False)
        async with branch.lock:
            return await _perform_here(pending, on_world=True)
    finally:
        del run.working[task]
        if outer is not None:
            run.working[task] = outer


async def _perform_here(pending: _Pending, *, on_world: bool) -> Any:
    run, branch = pending.scope.run, pending.scope.branch
    if (row := run.journal.served(pending.key, at=branch.snapshot if on_world else None)) is not None:
        if row.snapshot_out is not None:
            branch.snapshot = await asyncio.to_thread(run.snapshots.get, row.snapshot_out)
            if (sealed := run.journal.served(_seal_key(pending))) is not None:
                branch.checkpoint = run.journal.checkpoint_of(sealed)
        return codec.decode(row.result_json or "null")
    if pending.step.effect is Effect.IRREVERSIBLE and run.journal.knows(pending.key):
        raise Diverged(
            f"step {pending.step.name!r} on branch {branch.path} is irreversible and was done, but in another state "
            "than the branch stands in now, so its result does not fit and it is not done again. "
            "The order of a workflow's calls must not depend on timing"
        )
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
    branch = pending.scope.branch
    if not pending.step.reuse or planned is None or branch.unsealed or branch.snapshot.tier is not ProcessTier.NONE:
        return None
    state = branch.snapshot.content_key
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
    """Run the step's code, again as often as `retry` says, each time from the state where it began.

    An attempt that does not come to its end (it raised, was cancelled, gave what cannot be kept, or lost its world)
    leaves nothing: its world is dropped with all that still runs in it.
    """
    run, branch = pending.scope.run, pending.scope.branch
    begun, entry = run.clock(), branch.snapshot
    attempt = 0
    while True:
        face: Sandbox | None = None
        try:
            world, fork_s = await run.worlds.acquire(branch) if on_world else (None, None)
            face = Sandbox(world) if world is not None else None
            result_json, value = await _attempt(pending, face, attempt)
            sealed = await world.seal() if world is not None and run.seal_op(pending.op) is not None else None
            break
        except BaseException as error:
            if on_world:
                await run.worlds.drop(branch)
            if not isinstance(error, Exception):
                raise
            if attempt < pending.step.retry and not branch.lost:
                attempt += 1
                continue
            await _record_failure(pending, error, face, begun, entry if on_world else None)
            raise
    row = pending.row(
        result_json=result_json,
        result_digest=codec.digest_text(result_json),
        snapshot_in=entry.id if on_world else None,
        snapshot_out=sealed.id if sealed is not None else None,
        lineage_key=lineage if sealed is not None else None,
        started_at=begun,
        ended_at=run.clock(),
        summary=_one_line(value),
        attrs={} if fork_s is None else {"fork_ms": f"{fork_s * 1000:.3f}"},
    )
    if world is not None and sealed is None:
        branch.unsealed = True
    await _commit(pending, row, sealed)
    if world is not None:
        await run.worlds.rest(branch)
    return value


async def _attempt(pending: _Pending, face: Sandbox | None, attempt: int) -> tuple[str, Any]:
    """The result as the journal keeps it, and as a resumed run would see it."""
    step = pending.step
    limit = asyncio.timeout(step.timeout)
    try:
        async with limit:
            result_json = codec.encode(await _call(pending, face, attempt))
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"step {step.name!r} took longer than its timeout of {step.timeout:g} s") from error
        raise
    finally:
        if face is not None:
            face.end()
    return result_json, codec.decode(result_json)


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
    if row.lineage_key is not None and row.reused_from is None and row.snapshot_out is not None:
        run.reusable[row.lineage_key] = row.key


def _seal_key(pending: _Pending) -> str:
    return f"{pending.key}|SEAL"


async def _call(pending: _Pending, face: Sandbox | None, attempt: int) -> Any:
    scope = replace(pending.scope, step=StepFrame(pending.step.name, pending.key, pending.op, face, attempt))
    pending.scope.run.journal.forget_place(f"{pending.key}|a{attempt}")
    with entered(scope):
        return await call_step(pending.step, codec.decode(pending.arguments), face)


async def call_inline(step: StepDef, face: Sandbox | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A step called inside a step is part of it: no key and no seal of its own."""
    return await call_step(step, _bind(step, args, kwargs), face)


async def call_step(step: StepDef, arguments: dict[str, Any], face: Sandbox | None) -> Any:
    """Call the step's function with its arguments by name and its world: an async one here, others in a thread."""
    if inspect.iscoroutinefunction(step.function):
        if step.sandbox_parameter is not None:
            arguments[step.sandbox_parameter] = face
        return await _call_bound(step.function, arguments)
    if step.sandbox_parameter is not None and face is not None:
        arguments[step.sandbox_parameter] = SyncSandbox(face, asyncio.get_running_loop())
    return await asyncio.to_thread(_call_bound, step.function, arguments)


def _call_bound(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
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
