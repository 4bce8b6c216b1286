"""Perform a step: serve it from the journal, reuse an equal one, or run it on its branch's world and seal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import CoroutineType
from typing import Any

from ramify.compiler.plan import Effect, OpKind, PlanOp
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.codec.return_types import refuse_unstorable_return
from ramify.runtime.effects.argument_names import names_in_plan
from ramify.runtime.errors import (
    Diverged,
    EffectInDoubt,
    EffectNotMet,
    EffectRefused,
    HiddenWrites,
    NotSerialisable,
    PlanMismatch,
    WrongReuse,
    error_text,
)
from ramify.runtime.estimates.cost_model import Choice, Cost
from ramify.runtime.events import Level, Recovered
from ramify.runtime.execution.equal_calls import refuse_swapped_result, refuse_untold_call
from ramify.runtime.execution.placed_steps import perform_elsewhere
from ramify.runtime.execution.recorded_arguments import recorded_digest
from ramify.runtime.execution.run import (
    Run,
    RunScope,
    go_where_sealed_before,
    go_where_sealed_late,
    seal_before,
    start_prefork,
)
from ramify.runtime.execution.step_call import (
    StepCall,
    StepDef,
    after_recorded_effects,
    bind_with_defaults,
    is_plain,
    run_attempt,
)
from ramify.runtime.execution.step_commits import (
    Executed,
    begin_commit_behind,
    commit_executed,
    commit_step,
    may_commit_behind,
    state_after,
)
from ramify.runtime.execution.step_outcomes import (
    accept_effect,
    as_effect_in_doubt,
    barrier_of,
    raised_again,
    record_failure,
    settle_failed_effect,
)
from ramify.runtime.execution.step_world import StepWorld
from ramify.runtime.journal.cancelled_calls import record_cancelled, until_cancelled_again
from ramify.runtime.journal.failures import RaisedBy
from ramify.runtime.records import OpRecord, OpStatus
from ramify.runtime.reuse.fingerprints import code_fingerprint
from ramify.runtime.reuse.reuse import ASKED, ReuseQuery
from ramify.runtime.user_code.sandbox import Sandbox
from ramify.runtime.user_code.worker_threads import is_in_own_thread
from ramify.runtime.user_code.workflow_tasks import LEFT, BegunStep
from ramify.runtime.worlds.world_pool import Branch

FINAL = (EffectInDoubt, EffectNotMet, EffectRefused, HiddenWrites, NotSerialisable, WrongReuse)
"""Errors after which a step is not retried, because a retry cannot succeed."""


def begin_step(
    scope: RunScope, step: StepDef, op: PlanOp, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Awaitable[Any]:
    """Take the step's key now, in program order, and return the awaitable that performs the step.

    Raises `PlanMismatch` if the plan has another step at this place, and `BadArguments`.
    """
    if op.kind is OpKind.RUN and op.step != step.name:
        raise PlanMismatch(
            f"the plan runs step {op.step!r} at {op.site}, but {step.name!r} was called there: a name must mean the "
            "same step whenever a workflow runs; use different names for different steps"
        )
    scope.run.steps[step.name] = step
    bound, defaults = bind_with_defaults(step, args, kwargs)
    plain = bound if all(map(is_plain, bound.values())) else None
    encoded = Encoded(bound, f"step {step.name!r}: arguments", unicode=True)
    names = names_in_plan(scope.run.plan, step)
    args_digest = recorded_digest(scope, op, bound, defaults, encoded, names)
    key = scope.run.journal.key(scope.branch.path, op.id, args_digest[:16])
    refuse_untold_call(scope, step, op, key)
    caller = asyncio.current_task()
    from_main = is_in_own_thread() or (scope.run.asking is not None and scope.run.asking.is_main(caller))
    given = encoded.compact()
    call = StepCall(scope, step, op, key, args_digest, given, defaults, names, plain, from_main)
    performing = _perform(call)
    assert isinstance(performing, CoroutineType)
    performing.__qualname__ = f"step {step.name!r}"  # the name in Python's warning if it is never awaited
    scope.run.waits.watch(caller)
    scope.run.begun[key] = BegunStep(performing, caller)
    return performing


async def _perform(call: StepCall) -> Any:
    run, branch = call.scope.run, call.scope.branch
    task = asyncio.current_task()
    assert task is not None  # an awaitable runs in a task
    outer, began = run.working.get(task), run.clock()
    run.working[task] = branch.path
    run.begun[call.key].task = task
    run.waits.watch(task)
    try:
        async with run.journal.turns.of(call.key):
            done = run.journal.knows(call.key)
            if not done:
                first = partial(go_where_sealed_before, call.scope, call.key)
                await until_cancelled_again(run.journal, call.key, f"step {call.step.name!r}", first)
                await after_recorded_effects(call)
            value = await _perform_on_branch(call)
            # the branch is in the state after it by now, as it was when the step was cancelled
            if done and run.journal.cancelled_s(call.key) is not None:
                await until_cancelled_again(run.journal, call.key, f"step {call.step.name!r}")
            run.sets.returned(call.step.name, value)
            return value
    except Exception as error:
        run.journal.followers.told(error, RaisedBy(call.key, call.step.name, branch.path))
        raise
    except asyncio.CancelledError as error:
        if LEFT in error.args:
            said = f"CancelledError: {LEFT}"
            run.left.append(call.row(status=OpStatus.FAILED, error=said, started_at=began, summary=said))
        else:
            await record_cancelled(run.journal, call.row(started_at=began), error)
        raise
    finally:
        run.begun.pop(call.key, None)
        del run.working[task]
        if outer is not None:
            run.working[task] = outer


async def _perform_on_branch(call: StepCall) -> Any:
    run, branch = call.scope.run, call.scope.branch
    if run.journal.behind.began:
        await run.journal.behind.settled()
    if call.step.effect is Effect.PURE:
        return await _serve_or_execute(call, on_world=False)
    aside: StepCall | None = None
    async with branch.lock:
        await go_where_sealed_late(call.scope, call.key)
        if run.careful or call.op.kind is OpKind.BREAK:
            await seal_before(call.scope, call.key)
        beside = "beside" in call.op.attrs
        wrote = beside and run.journal.changed(call.key)  # it wrote in an earlier process: run it in turn again
        reads = beside or call.step.effect is Effect.READONLY
        if reads and not wrote and await _is_all_sealed(run, branch):
            copy = Branch(branch.path, branch.snapshot, branch.checkpoint, made=list(branch.made))
            aside = replace(call, aside=True, scope=replace(call.scope, branch=copy))
        if not beside or (aside is None and not wrote):
            return await _perform_on_world(aside or call)
    try:
        if aside is not None:
            return await _perform_on_world(aside)
        await asyncio.sleep(0)  # lets the steps that were called together with it begin first, as they did then
    except HiddenWrites as error:  # it is not read-only: run it again in its turn on the branch
        run.recovery.emit(Recovered(run.record.id, branch.path, Level.RETRY, str(error), 0.0))
    async with branch.lock:
        await go_where_sealed_late(call.scope, call.key)
        return await _perform_on_world(call)


async def _is_all_sealed(run: Run, branch: Branch) -> bool:
    """Whether the branch's snapshot contains everything in its world, so that a fork of it is equivalent."""
    if branch.unsealed or branch.lost or (run.places is not None and run.places.keeps_processes(branch.path)):
        return False
    return branch.world is None or not await branch.world.background_processes()


async def _perform_on_world(call: StepCall) -> Any:
    try:
        return await _serve_or_execute(call, on_world=True)
    finally:
        if call.aside:  # its separate world is not needed any more
            await call.scope.run.worlds.drop(call.scope.branch)


async def _serve_or_execute(call: StepCall, *, on_world: bool) -> Any:
    run, branch = call.scope.run, call.scope.branch
    if (row := run.journal.served(call.key, at=branch.snapshot if on_world else None)) is not None:
        refuse_swapped_result(call, row)
        return await _serve(call, row, on_world=on_world)
    if (raised := run.journal.failed(call.key, at=branch.snapshot if on_world else None)) is not None:
        raise raised_again(call, raised)
    _refuse_repetition(call)
    if not on_world:
        start_prefork(call.scope, call.op)
    query = _reuse_query(call) if on_world else None
    if query is None:
        return await _execute(call, None, on_world=on_world)
    async with run.reuse.alone(query):
        checked = run.reuse.to_be_checked()
        async with run.reuse.pins.held():
            begun, source = time.perf_counter(), await run.reuse.find(query)
            if source is not None and not checked:
                state = await run.reuse.applied(source, branch.snapshot)
                if state is not None:
                    return await _reuse_result(call, query, source, state, begun)
        return await _execute(call, query, on_world=True, expected=source if checked else None)


async def _serve(call: StepCall, row: OpRecord, *, on_world: bool) -> Any:
    """Return the recorded result, and move the branch to the recorded snapshot."""
    run, branch = call.scope.run, call.scope.branch
    if row.snapshot_out is not None:
        branch.owes = 0
        sealed = run.journal.served(call.seal_key)
        if sealed is not None:
            branch.checkpoint = run.journal.checkpoint_of(sealed)
        if row.snapshot_out != branch.snapshot.id:
            now = await run.recovery.get(row.snapshot_out, sealed.result_digest if sealed is not None else "")
            branch.stands(state_after(call, now, row))
    elif row.snapshot_in is not None:
        branch.owes = row.seq
    branch.served_s += row.ended_at - row.started_at if on_world else 0.0
    return codec.decode(row.result_json or "null")


def _refuse_repetition(call: StepCall) -> None:
    """Raise `Diverged` if the step ran in another state or with other arguments: it must not be repeated."""
    run, branch = call.scope.run, call.scope.branch
    if call.step.effect is Effect.IRREVERSIBLE and run.journal.knows(call.key):
        raise Diverged(
            f"step {call.step.name!r} on branch {branch.path} is irreversible and was done, but in another state "
            "than the branch is in now, so its result does not fit and it is not done again. "
            "The order of a workflow's calls may depend on its steps, but not on timers of its own"
        )
    if call.step.effect is Effect.UNKNOWN and run.was_changed and run.journal.knows(call.key):
        raise Diverged(
            f"step {call.step.name!r} on branch {branch.path} was done, but the code that was changed since has "
            "brought the branch into another state, so its result does not fit. What it may do outside is not "
            "declared, so it is not done again: declare its effect, or keep the new code from changing the world "
            "before it"
        )
    if (
        call.step.effect is Effect.UNKNOWN
        and run.was_changed
        and call.is_once
        and any(run.journal.unreached_steps_at(branch.path, call.op.id))
    ):
        raise Diverged(
            f"step {call.step.name!r} on branch {branch.path} was done with other arguments than the changed code "
            "gives it. What it may do outside is not declared, so it is not done again: "
            "declare its effect, or restore the code that computed its arguments"
        )


def _reuse_query(call: StepCall) -> ReuseQuery | None:
    """Return the step's reuse query, from its code, its inputs and the state of its world; None if it is not
    reusable. If no fingerprint covers everything that the step can see, results are reused only inside the run."""
    run, branch = call.scope.run, call.scope.branch
    planned = run.plan.step(call.step.name)
    if call.op.kind is OpKind.RUN and "shared" not in call.op.attrs:
        return None
    if not call.step.reuse or planned is None or branch.unsealed or branch.snapshot.tier is not ProcessTier.NONE:
        return None
    if not branch.snapshot.content_key:
        return None  # an undeclared process runs in the world, so its state has no key
    around = (run.reuse.environment, code_fingerprint(call.step.function))
    scope = [f"run {run.record.id}"] if None in around else list(around)
    operation = ["step", scope, call.step.name, planned.code_digest, codec.digest_as_given(call.arguments)]
    return ReuseQuery(codec.digest(operation), branch.snapshot)


async def _reuse_result(call: StepCall, query: ReuseQuery, source: OpRecord, snapshot: Snapshot, begun: float) -> Any:
    """Use the result and the change of an equal step, of another branch or run, and record that."""
    run, branch = call.scope.run, call.scope.branch
    layers, now = len(snapshot.layers), run.clock()
    restore = run.costs.predict(Cost.RESTORE, size=layers)
    choice = Choice("take over", restore, run.costs.predict(Cost.RECOMPUTE, name=call.step.name))
    took = time.perf_counter() - begun
    run.costs.observe(Cost.RESTORE, took, size=layers)
    row = call.row(
        result_json=source.result_json,
        result_digest=source.result_digest,
        snapshot_in=branch.snapshot.id,
        snapshot_out=snapshot.id,
        lineage_key=query.lineage_key,
        reused_from=f"{source.run_id}#{source.seq}",
        started_at=now,
        ended_at=now,
        summary=source.summary,
        attrs={**choice.attrs(took), "layers": str(layers), **{k: v for k, v in source.attrs.items() if k == ASKED}},
    )
    await commit_step(call, row, snapshot)
    return codec.decode(source.result_json or "null")


async def _execute(
    call: StepCall, query: ReuseQuery | None, *, on_world: bool, expected: OpRecord | None = None
) -> Any:
    async with AsyncExitStack() as held:
        return await _execute_and_commit(call, query, on_world=on_world, expected=expected, held=held)


async def _execute_and_commit(
    call: StepCall, query: ReuseQuery | None, *, on_world: bool, expected: OpRecord | None, held: AsyncExitStack
) -> Any:
    """Run the step's code, with up to `retry` more attempts, each from the state where the step began, and commit.

    An attempt that fails (it raised, was cancelled, returned a value that cannot be stored, or lost its world) leaves
    no files: its world is dropped, with all processes in it.

    query: the step's reuse query, None if it is not reusable.
    expected: a reusable row that is checked against this execution.
    held: gets the pins that protect the new snapshot until it is committed.
    """
    run, branch, fence = call.scope.run, call.scope.branch, call.fence()
    if fence is None:  # an irreversible step consults the ledger of effects first
        run.journal.refuse_when_stopped()
    elif run.journal.effect(call.key) is None:
        refuse_unstorable_return(call.step.function, f"step {call.step.name!r}")
    begun, entry = run.clock(), branch.snapshot
    attempt, restored = 0, dict[str, str]()
    while True:
        face: Sandbox | None = None
        own: StepWorld | None = None
        result_json: str | None = None
        begins = False  # whether the effect was begun in this attempt
        try:
            if fence is None and query is None:
                there = await perform_elsewhere(call, attempt, held, begun, on_world=on_world)
                if there is not None:
                    face, world, timings = there.face, None, dict[str, str]()
                    done, sealed = there.result()
                    break
            own = StepWorld(call, attempt, held, restored) if on_world else None
            face = None if own is None else await own.face()
            if fence is not None and (known := await fence.open()) is not None:
                return await accept_effect(call, fence, known, begun)
            begins = True
            result = await run_attempt(call, face, attempt)
            result_json = result.text
            if own is not None:
                await own.ended()
            done = Executed(
                *result,
                entry if on_world else None,
                begun,
                lineage_key=query.lineage_key if query is not None else None,
                attrs={
                    **restored,
                    **({"attempt": str(attempt)} if attempt else {}),
                    **({} if fence is None else barrier_of(call)),
                    **({} if query is None else run.reuse.asked(call.key)),
                },
            )
            world = None if own is None else own.world
            if own is not None and world is not None and query is None and fence is None and may_commit_behind(call):
                await begin_commit_behind(call, done, world, own.fork_s, held)
                return result.value
            sealed, timings = (None, {}) if own is None else await own.sealed()
            if expected is not None:
                was = await run.reuse.applied(expected, entry)
                what = f"step {call.step.name!r}"
                run.reuse.compare(expected, what, result.digest, was, sealed)
            break
        except BaseException as error:
            await held.aclose()
            if own is not None:
                await own.ended()
            if on_world:
                await run.worlds.drop(branch)
            if fence is not None and begins:  # otherwise the error says nothing about the effect
                await settle_failed_effect(fence, error, result_json)
            if not isinstance(error, Exception):
                raise
            again = attempt < call.step.retry and not branch.lost and error is not run.journal.stopped
            if again and not isinstance(error, FINAL):
                attempt += 1
                why = f"step {call.step.name!r}: {error_text(error)}"
                run.recovery.emit(Recovered(run.record.id, branch.path, Level.RETRY, why, run.clock() - begun))
                continue
            failure = error if fence is None else as_effect_in_doubt(call, fence, error, began=begins)
            if not isinstance(failure, HiddenWrites):
                await record_failure(call, failure, face, begun, entry if on_world else None)
            if failure is not error:
                raise failure from error
            raise
    done = replace(done, attrs={**done.attrs, **timings})
    await commit_executed(call, done, world, sealed, None if fence is None else fence.done(done.result_json))
    return done.value
