"""A step that was called, and how its code is run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from ramify.compiler.plan import ADDED, Effect, OpId, OpKind, PlanOp
from ramify.runtime import codec
from ramify.runtime.calling import StepDef, call_step
from ramify.runtime.commands import StepCommands
from ramify.runtime.effects import Fence
from ramify.runtime.pins import Ground
from ramify.runtime.records import OpRecord
from ramify.runtime.run import RunScope, StepFrame, new_row
from ramify.runtime.sandbox import Sandbox
from ramify.runtime.scope import entered


class StepTimeout(TimeoutError):
    """A step took longer than its own timeout."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A step that was called: where, with what, and under which key."""

    scope: RunScope
    step: StepDef
    op: PlanOp
    key: str
    args_digest: str
    arguments: str  # encoded: each attempt gets its own copy
    defaults: frozenset[str] = frozenset()  # the parameters that were not given
    aside: bool = False  # it only reads, in a world of its own on its branch's snapshot

    def fence(self) -> Fence | None:
        if self.step.effect is not Effect.IRREVERSIBLE:
            return None
        run = self.scope.run
        branch, outside = self.scope.branch.path, self.step.outside
        named = run.record.id, self.step.name, self.key, branch, self.arguments, outside
        foreseen = self.op.kind is not OpKind.BREAK and ADDED not in self.op.attrs and not run.was_changed
        return Fence(run.journal, run.clock, *named, self.op.id, foreseen, self.is_once, self.defaults)

    @property
    def is_once(self) -> bool:
        """Whether its code was changed since the run began, and its operation is called at most once on a branch."""
        origin = self.op.origin
        return self.scope.run.was_changed and origin is not None and not origin.repeats

    def row(self, **changes: Any) -> OpRecord:
        args = {"step": self.step.name, "args_digest": self.args_digest, **changes}
        return new_row(self.scope, OpKind.RUN, self.op.id, self.key, **args)

    @property
    def seal_key(self) -> str:
        """Of the SEAL that follows it."""
        return f"{self.key}|SEAL"


async def run_attempt(pending: Pending, face: Sandbox | None, attempt: int) -> tuple[str, Any]:
    """The result as the journal keeps it, and as a resumed run would see it."""
    step = pending.step
    limit = asyncio.timeout(step.timeout)
    try:
        async with limit:
            value = await run_code(pending, face, attempt)
    except TimeoutError as error:
        if limit.expired():
            raise StepTimeout(f"step {step.name!r} took longer than its timeout of {step.timeout:g} s") from error
        raise
    finally:
        if face is not None:
            face.end()
    return _kept(pending, value)


def _kept(pending: Pending, value: Any) -> tuple[str, Any]:
    """Raises `ResultNotKept` of an irreversible step: whatever went wrong with its result, it was done."""
    fence = pending.fence()
    try:
        result_json = codec.encode(value, f"step {pending.step.name!r}: its result")
        return result_json, codec.decode(result_json)
    except Exception as error:
        if fence is None:
            raise
        raise fence.result_lost(str(error)) from error


async def run_code(pending: Pending, face: Sandbox | None, attempt: int) -> Any:
    scope = replace(pending.scope, step=StepFrame(pending.step.name, pending.key, pending.op, face, attempt))
    pending.scope.run.journal.forget_place(f"{pending.key}|a{attempt}")
    with entered(scope):
        return await call_step(pending.step, codec.decode(pending.arguments), face)


def commands_of(pending: Pending, attempt: int, ground: Ground) -> StepCommands:
    def blank(kind: OpKind, op: OpId, key: str) -> OpRecord:
        return new_row(pending.scope, kind, op, key)

    return StepCommands(pending.scope.run, f"{pending.key}|a{attempt}", pending.op.id, blank, ground)
