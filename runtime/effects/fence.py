"""Irreversible effects: each is recorded before and after, and none with an unknown outcome is repeated silently.

**The big idea.** A journal row says what *was* done. That is not enough for a step that acts on the outside world: if
the process crashes between the step's start and its row, nobody can tell whether the effect happened. So an intent is
made durable before such a step starts, and its result after it. An intent without a result is *in doubt*. It is
resolved by the first of these that is available: the step's `reconcile` hook, which asks the receiver; the receiver
itself, if the step declares that the receiver honours idempotency keys (the same call is sent again under the same
key); a person (`ramify approve`). If nobody has decided yet, the run stops with `EffectInDoubt`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from ramify.compiler.plan import Effect, OpId, Plan
from ramify.runtime.codec import codec
from ramify.runtime.effects.argument_names import (
    HasParameters,
    arguments_now,
    as_recorded,
    by_names_in_plan,
)
from ramify.runtime.errors import (
    CompensationFailed,
    EffectInDoubt,
    EffectNotMet,
    EffectRefused,
    NotSerialisable,
    ResultNotKept,
    error_text,
)
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import DOUBTFUL, ROOT, BranchPath, EffectRecord, EffectStatus, RunId


class InFork(StrEnum):
    """What an irreversible step does on a branch of a fork."""

    REFUSE = "refuse"  # raise `EffectRefused`
    RECORDED = "recorded"  # return the recorded result for equal arguments, of this run or its origin; else REFUSE
    LEAVE = "leave"  # perform it; when the branch is released, it is compensated if it has a hook, else it stays


@dataclass(frozen=True, slots=True)
class Happened:
    """Returned by a `reconcile` hook if the effect took place. `value`: the result that the step would have
    returned."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """Returned by a `reconcile` hook if the effect did not take place: the step is performed now."""


Reconcile = Callable[..., Happened | DidNotHappen | Awaitable[Happened | DidNotHappen]]
Compensate = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Outside:
    """How an irreversible step deals with the outside world.

    Ramify calls `reconcile(key, **arguments)` and `compensate(key, result, **arguments)`, with the step's arguments.
    Both may be async and must be safe to repeat.
    """

    idempotent: bool = False  # the receiver honours the step's idempotency key
    reconcile: Reconcile | None = None
    compensate: Compensate | None = None
    in_fork: InFork = InFork.REFUSE


class EffectfulStep(HasParameters, Protocol):
    """The part of a step's definition that says how it deals with the outside world."""

    @property
    def effect(self) -> Effect: ...
    @property
    def outside(self) -> Outside: ...


KILLED = "the process ended before the step did"

ORDINARY = Outside()
"""Neither idempotency key nor hooks: a person has to resolve an effect in doubt."""


def idempotency_key(run: RunId, key: str) -> str:
    """Return the idempotency key of an effect: equal for all attempts in all processes, different for each effect."""
    return codec.digest([run, key])[:32]


@dataclass(frozen=True, slots=True)
class KnownEffect:
    """An effect that took place before: its encoded result, and how that is known."""

    result_json: str
    how: str
    elsewhere: bool = False  # the effect of another branch, whose recorded result is used


@dataclass(frozen=True, slots=True)
class Fence:
    """Records one effect: call `open` before it, and `done`, `failed` or `doubt` after it."""

    journal: Journal
    clock: Callable[[], float]
    run: RunId
    step: str
    key: str
    branch: BranchPath
    arguments: str  # encoded, by the names of now
    outside: Outside
    op: OpId
    foreseen: bool = True  # the plan with which the run began contains the operation
    once: bool = False  # a branch calls the operation at most once
    was_changed: bool = False  # a change of the code was accepted since the run began
    defaults: frozenset[str] = frozenset()  # the parameters that took their default
    # the names in the plan, by the names of now, of parameters that have other names now
    names: Mapping[str, str] = field(default_factory=dict)
    from_main: bool = False  # the workflow's own function called it, not a task or thread that it started

    @property
    def recorded(self) -> str:
        """The arguments as the ledger of effects has them."""
        return by_names_in_plan(self.arguments, self.names)

    def _as_recorded(self) -> list[str]:
        """Return the arguments as the ledger may have them: parameters may have been added since."""
        return list(as_recorded(self.recorded, self._recorded_defaults))

    @property
    def _recorded_defaults(self) -> frozenset[str]:
        return frozenset(self.names.get(name, name) for name in self.defaults)

    @property
    def idempotency_key(self) -> str:
        """The idempotency key of this effect. An effect that was compensated and is performed again gets a new key:
        the receiver would answer the old key with its old result and do nothing."""
        before = self.journal.effect(self.key)
        if before is None:
            return idempotency_key(self.run, self.key)
        if before.status is EffectStatus.COMPENSATED:
            return idempotency_key(self.run, before.idempotency_key)
        return before.idempotency_key

    async def open(self) -> KnownEffect | None:
        """Make the intent durable and return None; the effect may then be performed. Return the known result instead
        if the effect took place before.

        Raises `EffectInDoubt` if nobody knows whether it did, and `EffectRefused` on a branch where it is not
        allowed.
        """
        before = self.journal.effect(self.key)
        if before is None and (known := self._check_fork()) is not None:
            return known
        if before is not None:
            known = await self._known_result(before)
            if known is not None:
                return known
        self.journal.refuse_when_stopped()
        if before is None:
            self.refuse_other_arguments()
            self._refuse_after_left_out()
        if before is None and not self.foreseen:
            self._refuse_equal()
        try:
            await self.journal.settle(self._new_attempt())
        except asyncio.CancelledError as cancelled:
            try:
                await self._withdraw(before)
            except Exception as error:
                raise cancelled from error
            raise
        return None

    def _refuse_equal(self) -> None:
        equal = self.journal.unreached_effect(self.key, self.step, self._as_recorded())
        if equal is None:
            return
        raise self.journal.stop(
            EffectNotMet(
                f"step {self.step!r} is irreversible, and run {self.run} did not record its call at this "
                f"place. The journal holds an equal effect, with the same arguments, on branch {equal.branch} "
                f"({equal.status}, its idempotency key is {equal.idempotency_key}), which the workflow has not "
                "reached: it may be this one, so it is not done again. Restore the earlier code, or call the step "
                "with arguments that tell the two apart",
                run_id=self.run,
                key=equal.key,
            )
        )

    def refuse_other_arguments(self) -> None:
        """Raise `EffectNotMet` if this is the call of an effect that took place, with other arguments than then."""
        for effect in self.journal.unreached_effects_at(self.branch, self.op):
            why = self._why_same_call(effect) if effect.step == self.step else None
            if why is not None:
                raise self.journal.stop(
                    EffectNotMet(
                        f"step {self.step!r} is irreversible, and run {self.run} recorded this call of it on branch "
                        f"{effect.branch} with other arguments ({effect.status}, its idempotency key is "
                        f"{effect.idempotency_key}): {why[0]}. It is not done a second time. {why[1]}",
                        run_id=self.run,
                        key=effect.key,
                    )
                )

    def _refuse_after_left_out(self) -> None:
        """Raise `EffectNotMet` if the workflow has taken another way than the one on which it had an effect."""
        missed = self.journal.left_out_effect(self.key)
        if missed is None:
            return
        raise self.journal.stop(
            EffectNotMet(
                f"step {self.step!r} is irreversible and was not done before. Run {self.run} has recorded the "
                f"effect of step {missed.step!r} ({missed.status}, its idempotency key is {missed.idempotency_key}), "
                f"which the workflow has not reached this time, so this may be done in place of it. {self._depends}",
                run_id=self.run,
                key=missed.key,
            )
        )

    def _why_same_call(self, effect: EffectRecord) -> tuple[str, str] | None:
        """Return why this is the recorded call with other arguments, and what to do; None if it may be another
        call."""
        restore = (
            "Bring back what gave the call its arguments (a new parameter may have a default), or keep it for runs "
            "in flight under `if not ramify.patched(...)`"
        )
        before, now = json.loads(effect.args_json), json.loads(self.recorded)
        defaults, added = self._recorded_defaults, now.keys() - before.keys()
        differ = [name for name in now if name in before and not _is_equal(before[name], now[name])]
        if before.keys() - now.keys() or added - defaults or (added and defaults.issuperset(differ)):
            return f"the step took {_listed(before)} then, and takes {_listed(now)} now", restore
        if differ and defaults.issuperset(differ):
            return f"the defaults of {_listed(differ)} have changed", restore
        if not differ or not (self.once or self._is_left_out(effect, shares=len(differ) + len(added) < len(now))):
            return None
        if self.was_changed:
            return f"the changed code gives {_listed(differ)} another value", restore
        if effect.intended_at < self.journal.went_back_at:
            return None  # a person went back to before it, and knows of it
        return f"the workflow now gives {_listed(differ)} another value", self._depends

    def _is_left_out(self, effect: EffectRecord, *, shares: bool) -> bool:
        """Whether the call, one of several at its place, is probably this one with other arguments: the workflow does
        not reach the recorded one now. `shares`: they have some of their arguments in common.

        Otherwise it may be another call, if one of the workflow's tasks makes it. How many tasks are at work at once,
        and so which calls come first, may depend on the number of processors."""
        return effect.key in self.journal.turns.left_out and (shares or self.from_main)

    @property
    def _depends(self) -> str:
        return (
            "What the workflow does depends on more than its arguments and the results of steps: on a clock, on "
            "random numbers, on the number of processors, or on the order of a set. Let a step return that. "
            f"`ramify resume {self.run} --from STATE` goes back to before the call"
        )

    def done(self, result_json: str | None, note: str = "") -> EffectRecord:
        """Return the effect with its result, to be committed with the step's row. None: the result cannot be
        stored."""
        return self._changed(EffectStatus.DONE, result_json=result_json, note=note)

    def failed(self, error: BaseException) -> EffectRecord:
        """Return the effect as failed: the step raised, which means that nothing happened in this attempt."""
        return self._after_failed_attempt(type(error).__name__)

    async def doubt(self, why: str) -> None:
        await self.journal.settle(self._changed(EffectStatus.IN_DOUBT, note=why))

    async def _withdraw(self, before: EffectRecord | None) -> None:
        """Withdraw the intent of a step that was cancelled before it began: nothing was sent."""
        intent = self.journal.effect(self.key)
        if intent is None or intent is before:
            return  # the intent did not become durable
        await self.journal.settle(self._after_failed_attempt("cancelled before it began"))

    def _after_failed_attempt(self, how: str) -> EffectRecord:
        """Return the effect after an attempt that did nothing. If an earlier attempt was in doubt, it still is."""
        intent = self.journal.effect(self.key)
        doubt = "" if intent is None else intent.note
        return self._changed(EffectStatus.IN_DOUBT if doubt else EffectStatus.FAILED, note=doubt or how)

    async def _known_result(self, before: EffectRecord) -> KnownEffect | None:
        match before.status:
            case EffectStatus.DONE:
                if before.result_json is None:
                    return await self._recover_result(before)
                return KnownEffect(before.result_json, "done before the step's row was")
            case EffectStatus.APPROVED:
                return KnownEffect(before.result_json or "null", "a person said that it happened")
            case EffectStatus.INTENDED | EffectStatus.IN_DOUBT:
                return await self._resolve(before)
            case EffectStatus.FAILED | EffectStatus.AGAIN | EffectStatus.COMPENSATED:
                return None
            case EffectStatus.COMPENSATING:
                raise AssertionError("a run that went back undoes its effects before it goes on: `ledger.undo`")

    def result_lost(self, why: str) -> ResultNotKept:
        """Return the error for a step that was performed but whose result is lost; the caller raises it."""
        return ResultNotKept(
            f"step {self.step!r} on branch {self.branch} was done (its idempotency key is {self.idempotency_key}) "
            f"and is not done again, but its result was not kept: {why}. Give the run a result to continue with: "
            f"`ramify approve {self.run} {self.step} --done --result JSON`, then `ramify resume {self.run}`. "
            "For later runs, have the step return plain values",
            run_id=self.run,
            key=self.key,
        )

    async def _recover_result(self, before: EffectRecord) -> KnownEffect:
        """Ask the reconcile hook for the result of an effect that was performed but whose result was not stored."""
        why = before.note.removeprefix("its result was not kept: ")
        if self.outside.reconcile is not None:
            answer = await _call(self.outside.reconcile, self.idempotency_key, **codec.decode(self.arguments))
            if isinstance(answer, Happened):
                try:
                    return KnownEffect(
                        codec.encode(answer.value, "what its reconcile hook gave"), "its reconcile hook found it"
                    )
                except NotSerialisable as error:
                    why = str(error)
        raise self.journal.stop(self.result_lost(why))

    async def _resolve(self, before: EffectRecord) -> KnownEffect | None:
        if self.outside.reconcile is not None:
            answer = await _call(self.outside.reconcile, self.idempotency_key, **codec.decode(self.arguments))
            if isinstance(answer, Happened):
                return KnownEffect(codec.encode(answer.value), "its reconcile hook found it")
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
            f"it is unknown whether the effect of step {self.step!r} on branch {self.branch} happened "
            f"({before.note or KILLED}). Find out (its idempotency key is "
            f"{self.idempotency_key}), then: `ramify approve {self.run} {self.step} --done` (with --result JSON) "
            f"if it did, or `--again` if it did not; then `ramify resume {self.run}`",
            run_id=self.run,
            key=self.key,
        )
        raise self.journal.stop(doubt)

    def _check_fork(self) -> KnownEffect | None:
        fenced = self.journal.fenced
        if (self.branch == ROOT and not fenced) or self.outside.in_fork is InFork.LEAVE:
            return None
        if self.outside.in_fork is InFork.RECORDED:
            same = self.journal.effect_like(self.step, self._as_recorded())
            if same is not None and same.result_json is None:
                raise EffectRefused(
                    f"step {self.step!r} was done for these arguments on branch {same.branch} of run {same.run_id}, "
                    f"and its result was not kept. Give it: `ramify approve {same.run_id} {self.step} --done "
                    "--result JSON`"
                )
            if same is not None:
                where = f"on branch {same.branch}" + (f" of run {same.run_id}" if same.run_id != self.run else "")
                return KnownEffect(same.result_json or "null", f"recorded {where}", elsewhere=True)
        missing = "; nothing is recorded for these arguments" if self.outside.in_fork is InFork.RECORDED else ""
        if self.branch == ROOT:
            raise EffectRefused(
                f"step {self.step!r} is irreversible, and run {self.run} is a fork of another run, made to see what "
                "would have happened: fork it with `--for-real` to perform such steps, or set the step's in_fork="
                f"{missing}"
            )
        raise EffectRefused(
            f"step {self.step!r} is irreversible and was called on branch {self.branch}, which may be discarded: "
            f"call it after the winner is adopted, or set the step's in_fork={missing}"
        )

    def _new_attempt(self) -> EffectRecord:
        before = self.journal.effect(self.key)
        doubtful = before is not None and before.status in DOUBTFUL and self.outside.reconcile is None
        return EffectRecord(
            run_id=self.run,
            key=self.key,
            step=self.step,
            branch=self.branch,
            status=EffectStatus.INTENDED,
            idempotency_key=self.idempotency_key,
            args_json=self.recorded,
            intended_at=self.clock(),
            note="" if before is None or not doubtful else before.note or KILLED,  # of the previous attempt
            attempt=1 if before is None else before.attempt + 1,
        )

    def _changed(self, status: EffectStatus, *, result_json: str | None = None, note: str = "") -> EffectRecord:
        before = self.journal.effect(self.key) or self._new_attempt()
        return replace(before, status=status, result_json=result_json, settled_at=self.clock(), note=note)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _is_equal(one: Any, other: Any) -> bool:
    return codec.is_same(json.dumps(one), json.dumps(other))


async def compensate(
    journal: Journal, effect: EffectRecord, step: EffectfulStep, plan: Plan, clock: Callable[[], float]
) -> None:
    """Undo one effect with its step's `compensate` hook. After a kill the hook is called again.

    The hook gets None for a result that was not stored. Raises `CompensationFailed` if the hook raises.
    """
    hook = step.outside.compensate
    assert hook is not None
    arguments = arguments_now(effect.args_json, plan, step)
    try:
        await _call(hook, effect.idempotency_key, codec.decode(effect.result_json or "null"), **arguments)
    except Exception as error:
        raise CompensationFailed(
            f"the compensate hook of step {effect.step!r} raised {error_text(error)}; the effect of the "
            f"step is not undone (idempotency key {effect.idempotency_key}). Fix the cause, then: "
            f"`ramify resume {effect.run_id}` undoes it before it continues",
            run_id=effect.run_id,
        ) from error
    await journal.settle(replace(effect, status=EffectStatus.COMPENSATED, settled_at=clock()))


async def _call(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    answer = hook(*args, **kwargs)
    return await answer if inspect.isawaitable(answer) else answer
