"""Effects on the outside, fenced: what was done is known, and what is not known is never done again unasked.

**The big idea.** A journal row says what *was* done. Of a step that reaches outside that is not enough: between the
moment when it began and its row lies a time in which a crash leaves nobody to say whether it happened. So an intent
is durable before such a step starts, its result is durable after it, and an intent without a result is *in doubt*.
A doubt is settled by the first of these that there is: the receiver (the step declares that it honours the
idempotency key: the same call is sent again, under the same key), the step's own `reconcile` hook (it asks the
receiver), a person (`ramify approve`). Without any of them the run stops with `EffectInDoubt`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ramify.compiler.plan import OpId
from ramify.runtime.codec import codec
from ramify.runtime.errors import (
    CompensationFailed,
    EffectInDoubt,
    EffectNotMet,
    EffectRefused,
    NotSerialisable,
    ResultNotKept,
)
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import DOUBTFUL, ROOT, BranchPath, EffectRecord, EffectStatus, RunId


class InFork(StrEnum):
    """What an irreversible step does on a branch of a fork."""

    REFUSE = "refuse"  # it is not done: `EffectRefused`
    RECORDED = "recorded"  # it gives what it gave for the same arguments, here or where forked from; else as REFUSE
    LEAVE = "leave"  # it is done, and stays done when its branch is released, unless it can be compensated


@dataclass(frozen=True, slots=True)
class Happened:
    """What a `reconcile` hook gives where the effect took place: the result that the step would have given."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """What a `reconcile` hook gives where it did not: the step is done now."""


Reconcile = Callable[..., Happened | DidNotHappen | Awaitable[Happened | DidNotHappen]]
Compensate = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Outside:
    """How an irreversible step meets the outside. Hooks are called as `hook(key, **arguments of the step)`,
    `compensate` as `compensate(key, result, **arguments)`; each may be async and must be safe to repeat."""

    idempotent: bool = False  # the receiver honours the step's idempotency key
    reconcile: Reconcile | None = None
    compensate: Compensate | None = None
    in_fork: InFork = InFork.REFUSE


KILLED = "the process ended before the step did"

ORDINARY = Outside()
"""Neither key nor hooks: a doubt is for a person to settle."""


def idempotency_key(run: RunId, key: str) -> str:
    """The same for every attempt at one effect, in every process that works on the run; no two effects share one."""
    return codec.digest([run, key])[:32]


@dataclass(frozen=True, slots=True)
class Known:
    """An effect that took place already, its result encoded, and how that is known."""

    result_json: str
    how: str
    elsewhere: bool = False  # on another branch: it is not this step's effect


@dataclass(frozen=True, slots=True)
class Fence:
    """The fence around one effect: `open` before it, `done`, `failed` or `doubt` after it."""

    journal: Journal
    clock: Callable[[], float]
    run: RunId
    step: str
    key: str
    branch: BranchPath
    arguments: str  # encoded
    outside: Outside
    op: OpId
    foreseen: bool = True  # the plan that the run began with has its operation
    once: bool = False  # the code was changed since, and the operation is called at most once on a branch
    defaults: frozenset[str] = frozenset()  # the parameters that were not given

    @property
    def idempotency_key(self) -> str:
        """Of the effect at hand. One that was undone and is done anew is another to the receiver, who would answer
        the old key by what it knows, and do nothing."""
        before = self.journal.effect(self.key)
        if before is None:
            return idempotency_key(self.run, self.key)
        if before.status is EffectStatus.COMPENSATED:
            return idempotency_key(self.run, before.idempotency_key)
        return before.idempotency_key

    async def open(self) -> Known | None:
        """Let the effect happen: the intent is durable when this returns None. Its result, where it happened before.

        Raises `EffectInDoubt` where nobody knows, and `EffectRefused` on a branch where it may not happen.
        """
        before = self.journal.effect(self.key)
        if before is None and (known := self._in_fork()) is not None:
            return known
        if before is not None:
            known = await self._settle(before)
            if known is not None:
                return known
        self.journal.refuse_when_stopped()
        if before is None:
            self._refuse_other_arguments()
        if before is None and not self.foreseen:
            self._refuse_equal()
        try:
            await self.journal.settle(self._blank())
        except asyncio.CancelledError as cancelled:
            try:
                await self._take_back(before)
            except Exception as error:
                raise cancelled from error
            raise
        return None

    def _refuse_equal(self) -> None:
        equal = self.journal.unreached_effect(self.key, self.step, self.arguments)
        if equal is None:
            return
        raise self.journal.stop(
            EffectNotMet(
                f"step {self.step!r} is irreversible, and run {self.run} did not record its call at this "
                f"place. The journal holds an equal effect, with the same arguments, on branch {equal.branch} "
                f"({equal.status}, its "
                f"idempotency key is {equal.idempotency_key}), which the workflow has not come to: it may be this "
                "one, so it is not done again. Bring the code back as it was, or call the step with arguments that "
                "tell the two apart",
                run_id=self.run,
                key=equal.key,
            )
        )

    def _refuse_other_arguments(self) -> None:
        """It is the call of an effect that took place, given other arguments by a change of the code."""
        for effect in self.journal.unreached_effects_at(self.branch, self.op):
            why = self._why_other(effect) if effect.step == self.step else None
            if why is not None:
                raise self.journal.stop(
                    EffectNotMet(
                        f"step {self.step!r} is irreversible, and run {self.run} recorded this call of it on branch "
                        f"{effect.branch} with other arguments ({effect.status}, its idempotency key is "
                        f"{effect.idempotency_key}): {why}. It is not done a second time. Bring back what gave the "
                        "call its arguments (a new parameter may have a default), or keep it for runs in flight "
                        "under `if not ramify.patched(...)`",
                        run_id=self.run,
                        key=effect.key,
                    )
                )

    def _why_other(self, effect: EffectRecord) -> str | None:
        """None where the difference does not tell that it is the same call."""
        before, now = json.loads(effect.args_json), json.loads(self.arguments)
        if before.keys() != now.keys():
            return f"the step took {_listed(before)} then, and takes {_listed(now)} now"
        differ = [name for name in now if before[name] != now[name]]
        if differ and self.defaults.issuperset(differ):
            return f"the defaults of {_listed(differ)} have changed"
        return f"the changed code gives {_listed(differ)} another value" if differ and self.once else None

    def done(self, result_json: str | None, note: str = "") -> EffectRecord:
        """The effect with its result, to be committed with the step's row. None: its result cannot be kept."""
        return self._changed(EffectStatus.DONE, result_json=result_json, note=note)

    def failed(self, error: BaseException) -> EffectRecord:
        """The step raised: by its own word nothing happened in this attempt."""
        return self._nothing_done(type(error).__name__)

    async def doubt(self, why: str) -> None:
        await self.journal.settle(self._changed(EffectStatus.IN_DOUBT, note=why))

    async def _take_back(self, before: EffectRecord | None) -> None:
        """Cancelled as the intent became durable, before the step began: nothing was sent."""
        intent = self.journal.effect(self.key)
        if intent is None or intent is before:
            return  # it did not become durable
        await self.journal.settle(self._nothing_done("cancelled before it began"))

    def _nothing_done(self, how: str) -> EffectRecord:
        """This attempt did nothing. What nobody knew of an earlier one is as it was."""
        intent = self.journal.effect(self.key)
        doubt = "" if intent is None else intent.note
        return self._changed(EffectStatus.IN_DOUBT if doubt else EffectStatus.FAILED, note=doubt or how)

    async def _settle(self, before: EffectRecord) -> Known | None:
        match before.status:
            case EffectStatus.DONE:
                if before.result_json is None:
                    return await self._found_again(before)
                return Known(before.result_json, "done before the step's row was")
            case EffectStatus.APPROVED:
                return Known(before.result_json or "null", "a person said that it happened")
            case EffectStatus.INTENDED | EffectStatus.IN_DOUBT:
                return await self._resolve(before)
            case EffectStatus.FAILED | EffectStatus.AGAIN | EffectStatus.COMPENSATED:
                return None
            case EffectStatus.COMPENSATING:
                raise AssertionError("a run that went back undoes its effects before it goes on: `ledger.undo`")

    def result_lost(self, why: str) -> ResultNotKept:
        """The error of a step that was done and whose result is not there; it is for the caller to raise."""
        return ResultNotKept(
            f"step {self.step!r} on branch {self.branch} was done (its idempotency key is {self.idempotency_key}) "
            f"and is not done again, but its result was not kept: {why}. Give the run a result to go on with: "
            f"`ramify approve {self.run} {self.step} --done --result JSON`, then `ramify resume {self.run}`. "
            "For later runs, have the step return plain values",
            run_id=self.run,
            key=self.key,
        )

    async def _found_again(self, before: EffectRecord) -> Known:
        """Of an effect that was done and whose result was not kept: what its hook says that it was."""
        why = before.note.removeprefix("its result was not kept: ")
        if self.outside.reconcile is not None:
            answer = await _call(self.outside.reconcile, self.idempotency_key, **codec.decode(self.arguments))
            if isinstance(answer, Happened):
                try:
                    return Known(
                        codec.encode(answer.value, "what its reconcile hook gave"), "its reconcile hook found it"
                    )
                except NotSerialisable as error:
                    why = str(error)
        raise self.journal.stop(self.result_lost(why))

    async def _resolve(self, before: EffectRecord) -> Known | None:
        if self.outside.reconcile is not None:
            answer = await _call(self.outside.reconcile, self.idempotency_key, **codec.decode(self.arguments))
            if isinstance(answer, Happened):
                return Known(codec.encode(answer.value), "its reconcile hook found it")
            if isinstance(answer, DidNotHappen):
                return None
            raise TypeError(
                f"the reconcile hook of step {self.step!r} gave {type(answer).__name__}: "
                "return ramify.Happened(result) or ramify.DidNotHappen()"
            )
        if self.outside.idempotent:
            return None
        if before.status is EffectStatus.INTENDED:
            await self.doubt(KILLED)
        doubt = EffectInDoubt(
            f"nobody knows whether step {self.step!r} on branch {self.branch} happened "
            f"({before.note or KILLED}). Find out (its idempotency key is "
            f"{self.idempotency_key}), then: `ramify approve {self.run} {self.step} --done` (with --result JSON) "
            f"if it did, or `--again` if it did not; then `ramify resume {self.run}`",
            run_id=self.run,
            key=self.key,
        )
        raise self.journal.stop(doubt)

    def _in_fork(self) -> Known | None:
        fenced = self.journal.fenced
        if (self.branch == ROOT and not fenced) or self.outside.in_fork is InFork.LEAVE:
            return None
        if self.outside.in_fork is InFork.RECORDED:
            same = self.journal.effect_like(self.step, self.arguments)
            if same is not None and same.result_json is None:
                raise EffectRefused(
                    f"step {self.step!r} was done for these arguments on branch {same.branch} of run {same.run_id}, "
                    f"and its result was not kept. Give it: `ramify approve {same.run_id} {self.step} --done "
                    "--result JSON`"
                )
            if same is not None:
                where = f"on branch {same.branch}" + (f" of run {same.run_id}" if same.run_id != self.run else "")
                return Known(same.result_json or "null", f"recorded {where}", elsewhere=True)
        missing = "; nothing is recorded for these arguments" if self.outside.in_fork is InFork.RECORDED else ""
        if self.branch == ROOT:
            raise EffectRefused(
                f"step {self.step!r} is irreversible, and run {self.run} was forked from another to see what would "
                "have happened: fork it `--for-real` to let it happen, or say with in_fork= what it is to do"
                f"{missing}"
            )
        raise EffectRefused(
            f"step {self.step!r} is irreversible and was called on branch {self.branch}, which may be thrown away: "
            f"call it after the winner is adopted, or say with in_fork= what it is to do there{missing}"
        )

    def _blank(self) -> EffectRecord:
        before = self.journal.effect(self.key)
        doubtful = before is not None and before.status in DOUBTFUL and self.outside.reconcile is None
        return EffectRecord(
            run_id=self.run,
            key=self.key,
            step=self.step,
            branch=self.branch,
            status=EffectStatus.INTENDED,
            idempotency_key=self.idempotency_key,
            args_json=self.arguments,
            intended_at=self.clock(),
            note="" if before is None or not doubtful else before.note or KILLED,  # of the attempt before
            attempt=1 if before is None else before.attempt + 1,
        )

    def _changed(self, status: EffectStatus, *, result_json: str | None = None, note: str = "") -> EffectRecord:
        before = self.journal.effect(self.key) or self._blank()
        return replace(before, status=status, result_json=result_json, settled_at=self.clock(), note=note)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


async def compensate(journal: Journal, effect: EffectRecord, hook: Compensate, clock: Callable[[], float]) -> None:
    """Undo one effect by its step's hook. Killed half way, it is called again: a hook must be safe to repeat.

    A result that was not kept is None to it. Raises `CompensationFailed` where the hook does.
    """
    arguments = codec.decode(effect.args_json)
    try:
        await _call(hook, effect.idempotency_key, codec.decode(effect.result_json or "null"), **arguments)
    except Exception as error:
        raise CompensationFailed(
            f"the compensate hook of step {effect.step!r} raised {type(error).__name__}: {error}; what the step did "
            f"outside stands (idempotency key {effect.idempotency_key}). Mend the cause, then: "
            f"`ramify resume {effect.run_id}` undoes it before it goes on",
            run_id=effect.run_id,
        ) from error
    await journal.settle(replace(effect, status=EffectStatus.COMPENSATED, settled_at=clock()))


async def _call(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    answer = hook(*args, **kwargs)
    return await answer if inspect.isawaitable(answer) else answer
