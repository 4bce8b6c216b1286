"""Record the outcome of a step: its row, its world's new state, its effect, or its failure."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import Any

from ramify.compiler.plan import Effect, OpKind
from ramify.fork_engine.types import Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.effects.fence import KILLED, Fence, KnownEffect
from ramify.runtime.errors import EffectInDoubt, NotSerialisable, ResultNotKept, WrongReuse, error_text
from ramify.runtime.estimates.cost_model import Choice, Cost
from ramify.runtime.events import Level, Recovered
from ramify.runtime.execution.step_call import StepCall, StepTimeout
from ramify.runtime.journal import recorded_errors
from ramify.runtime.records import DOUBTFUL, STANDS, EffectStatus, OpStatus
from ramify.runtime.user_code.sandbox import Sandbox
from ramify.sandboxes.contract import World
from ramify.sandboxes.errors import SandboxError

_SUMMARY = 80
_LOOK_AT = 100  # characters of a string and items of a collection: more than a summary shows
_TAIL = 800

_NOT_FROM_THE_CODE = (StepTimeout, NotSerialisable, SandboxError, WrongReuse)
"""Errors that do not come from the step's code, so they do not say that its effect did not happen."""


def restore_attrs(call: StepCall, world: World | None, fork_s: float | None) -> dict[str, str]:
    """Return row attributes about how the branch of a resumed run got its world back, and emit an event. Empty if the
    branch had a live world.

    The alternative to restoring is to recompute the steps for which the journal answered.
    """
    run, branch = call.scope.run, call.scope.branch
    if world is None or fork_s is None:
        return {}
    served, branch.served_s = branch.served_s, 0.0
    if (again := run.recovery.again.pop(branch.path, None)) is not None:
        return Choice("compute again", again.predicted_s, None).attrs(again.took_s)
    if not served:
        return {}
    layers = len(world.snapshot.layers)
    why = (
        f"state {branch.snapshot.id[:12]} is complete: {layers} layers mounted, instead of repeating steps that took "
        f"{served:.2f} s"
    )
    run.recovery.emit(Recovered(run.record.id, branch.path, Level.RESTORE, why, fork_s))
    return Choice("restore", run.costs.predict(Cost.FORK, size=layers), served).attrs(fork_s)


def barrier_of(call: StepCall) -> dict[str, str]:
    """Return the row attribute for the plan's BARRIER of an irreversible step, which the effect's intent
    fulfilled."""
    irreversible = call.step.effect is Effect.IRREVERSIBLE
    barrier = call.scope.run.plan.before(call.op, OpKind.BARRIER) if irreversible else None
    return {} if barrier is None else {"barrier": barrier.id}


async def accept_effect(call: StepCall, fence: Fence, known: KnownEffect, begun: float) -> Any:
    """Record a step whose effect took place before: use its known result, and leave the world unchanged."""
    run, branch = call.scope.run, call.scope.branch
    result = codec.decode(known.result_json)
    row = call.row(
        result_json=known.result_json,
        result_digest=codec.digest_text(known.result_json),
        snapshot_in=branch.snapshot.id,
        snapshot_out=branch.snapshot.id,
        started_at=begun,
        ended_at=run.clock(),
        summary=one_line(result),
        attrs={"effect": known.how},
    )
    await run.journal.record(row, effect=None if known.elsewhere else fence.done(known.result_json, known.how))
    await run.worlds.rest(branch)
    return result


async def settle_failed_effect(fence: Fence, error: BaseException, result_json: str | None) -> None:
    """Record what is known of an effect whose step ended by `error`."""
    now = fence.journal.effect(fence.key)
    if now is None or now.status is not EffectStatus.INTENDED:
        return  # it was never begun, or is in doubt already
    if result_json is not None:
        await fence.journal.settle(fence.done(result_json))  # the effect happened; the seal after it failed
    elif isinstance(error, ResultNotKept):
        await fence.journal.settle(fence.done(None, f"its result was not kept: {error.__cause__ or error}"))
        # a workflow that catches the error and calls the step again would repeat the effect
        fence.journal.stop(error)
    elif isinstance(error, Exception) and not isinstance(error, _NOT_FROM_THE_CODE):
        await fence.journal.settle(fence.failed(error))
    else:
        await fence.doubt(f"the step was ended by {type(error).__name__}")


def as_effect_in_doubt(call: StepCall, fence: Fence, error: Exception, *, began: bool) -> Exception:
    """Return the error that an irreversible step raises when `error` ended it.

    If an earlier attempt is in doubt, a workflow that catches `error` would believe that nothing happened; so the
    error becomes `EffectInDoubt` and the run ends (decision 005). A timeout of the step itself is passed to the
    workflow. `began`: the effect was begun in this attempt.
    """
    now = fence.journal.effect(fence.key)
    if now is None or now.status not in DOUBTFUL or isinstance(error, EffectInDoubt | WrongReuse):
        return error
    if began and isinstance(error, _NOT_FROM_THE_CODE):
        return error
    run, how = call.scope.run, "asks its reconcile hook" if fence.outside.reconcile else "sends it under that key"
    doubt = EffectInDoubt(
        f"step {fence.step!r} on branch {fence.branch} raised {error_text(error)}. That says nothing "
        f"about the attempt before it ({now.note or KILLED}): it is unknown whether its effect happened (idempotency "
        f"key {now.idempotency_key}). `ramify resume {fence.run}` {how} again; or find out, then: `ramify approve "
        f"{fence.run} {fence.step} --done` (with --result JSON) if it did, or `--again` if it did not",
        run_id=fence.run,
        key=fence.key,
    )
    run.journal.stop(doubt)
    return doubt


async def record_failure(
    call: StepCall, error: Exception, face: Sandbox | None, begun: float, entry: Snapshot | None
) -> None:
    """Record a failed step, and add the same as a note to the error. A resume raises the error again, unless the run
    ended with it (`ramify.runtime.journal.failures`). An error that stopped the run is tried again in any case."""
    run = call.scope.run
    shown = error_text(error)
    where = f"step {call.step.name!r} on branch {call.scope.branch.path}"
    last = ""
    if face is not None and face.last is not None:
        tail = (face.last.stdout + face.last.stderr)[-_TAIL:].strip()
        last = f"; its last command {face.last.command!r} exited with {face.last.exit_code}" + (
            f":\n{tail}" if tail else ""
        )
    error.add_note(f"raised in {where}, on the world of snapshot {entry.id[:12] if entry else '(none)'}{last}")
    await run.journal.record(
        call.row(
            status=OpStatus.FAILED,
            error=shown,
            snapshot_in=entry.id if entry else None,
            started_at=begun,
            summary=EffectStatus.IN_DOUBT if isinstance(error, EffectInDoubt) else one_line(shown),
            attrs={
                **({"last_output": last} if last else {}),
                **({} if error is run.journal.stopped else {STANDS: "yes", **recorded_errors.encoded(error)}),
            },
        )
    )


def raised_again(call: StepCall, error: Exception) -> Exception:
    """Return an error that an earlier process recorded, with what a reader has to know of it."""
    error.add_note(f"raised in step {call.step.name!r} on branch {call.scope.branch.path} in an earlier process")
    return error


def one_line(value: object) -> str:
    if value is None:
        return ""
    lines = str(_shortened(value))[: _SUMMARY + 1].splitlines()
    if not lines:
        return ""
    return lines[0] if len(lines[0]) <= _SUMMARY else f"{lines[0][: _SUMMARY - 1]}…"


def _shortened(value: object) -> object:
    """Return a value whose text begins like that of the given one, so that no text of a long value is made."""
    kind = type(value)
    if isinstance(value, str | bytes | bytearray) and kind in (str, bytes, bytearray):
        return value[:_LOOK_AT] if len(value) > _LOOK_AT else value
    if isinstance(value, list | tuple) and kind in (list, tuple):
        some = [_shortened(one) for one in islice(value, _LOOK_AT)]
        return tuple(some) if kind is tuple else some
    if isinstance(value, dict) and kind is dict:
        return {key: _shortened(one) for key, one in islice(value.items(), _LOOK_AT)}
    if dataclasses.is_dataclass(value) and _is_generated(kind):
        shown = object.__new__(kind)
        for one in dataclasses.fields(value):
            if hasattr(value, one.name):
                object.__setattr__(shown, one.name, _shortened(getattr(value, one.name)))
        return shown
    return value


def _is_generated(kind: Any) -> bool:
    """Whether the text of a dataclass is the generated one, which reads nothing but its fields."""
    own = hasattr(kind.__repr__, "__wrapped__") and kind.__str__ is object.__str__
    return own and kind.__getattribute__ is object.__getattribute__ and not hasattr(kind, "__del__")
