"""Start, resume and end runs of workflows that are written with the decorators."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from ramify.compiler.plan import ACCEPTED, ADDED, WORLDLESS, OpId, OpKind, Plan, PlanOp
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import Skipped, Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.errors import RunCancelled, error_text
from ramify.runtime.estimates.cost_model import CostModel
from ramify.runtime.events import Noticed, RunEnded, RunStarted
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.execution.new_runs import Launch, Services, begun
from ramify.runtime.execution.prefix_hints import send_prefix_hint
from ramify.runtime.execution.question_waits import AnswersNeeded
from ramify.runtime.execution.questions import asking_of, waiting
from ramify.runtime.execution.run import Run, RunScope
from ramify.runtime.execution.run_failure import failure_of
from ramify.runtime.execution.streaming import outcome
from ramify.runtime.journal.failures import standing_failures
from ramify.runtime.journal.forked_runs import ancestor_runs
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import (
    DOUBTFUL,
    ROOT,
    AnswerRecord,
    EffectRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunStatus,
    RunUpdate,
    Settings,
    checkpoint_id,
)
from ramify.runtime.reuse.fingerprints import world_fingerprint
from ramify.runtime.reuse.reuse import Answers, Reuse, Sampler, model_of
from ramify.runtime.store.engines import finish_despite_cancel
from ramify.runtime.store.run_locks import hold_run, take_cancel_request
from ramify.runtime.user_code.fork_guard import InOneProcess
from ramify.runtime.user_code.program_exits import ExitsOfRuns
from ramify.runtime.user_code.scope import entered
from ramify.runtime.user_code.workflow_loader import register_target
from ramify.runtime.user_code.workflow_tasks import LEFT
from ramify.runtime.worlds.recovery import Recovery
from ramify.runtime.worlds.world_pool import Branch, StateOrigin, WarmStates, WorldPool, spec_of_run
from ramify.sandboxes.contract import WorldSpec

_CHANGE = OpId("change")
_LISTEN_S = 0.25  # seconds between two checks for `ramify cancel`


@dataclass(frozen=True, slots=True)
class Adoption:
    """The plan with which a run continues after a change of its code, and what the journal records about that."""

    plan: Plan
    summary: str
    attrs: Mapping[str, str]


Adopt = Callable[[Sequence[OpRecord], Sequence[LLMRecord], Sequence[EffectRecord]], Adoption]
"""Makes an `Adoption` from the recorded rows, model calls and effects. Raises `WorkflowChanged`."""


async def drive(
    services: Services,
    record: RunRecord,
    function: Callable[..., Any],
    *,
    new_deadline_s: float | None = None,
    plan: Plan | None = None,
    code: Mapping[str, str] = MappingProxyType({}),
    adopt: Adopt | None = None,
    amended: tuple[str, str] | None = None,
) -> Any:
    """Run the workflow from the end of its journal to its end, and return its result.

    new_deadline_s: a new deadline, in seconds from now.
    plan: that of the record, if it was read already.
    code: digests of steps that changed since the plan was made; their recorded results are not reused.
    adopt: makes the plan of changed code, which replaces the run's plan.
    amended: the run's plan as it was read, and as it is with the parameters that its steps have now.

    Raises `RunFailed` or `StepFailed`, and `RunWaiting` if the workflow asks a question that is not answered yet.
    """
    store = services.store
    async with hold_run(services.locks, store, record.id):
        found = await store.rows_of(record.id)  # another process may have gone on with it before the lock was free
        now, llm, ledger = found.run, found.llm, found.effects
        ops: Sequence[OpRecord] = found.ops
        if now.status is RunStatus.DONE:
            return codec.decode(now.result_json or "null")
        record = replace(now, plan_json=record.plan_json)
        waited = record.status is RunStatus.WAITING  # then the workflow caught all failures recorded so far
        record, resumed = await _reopen(services, record, new_deadline_s)
        elsewhere = [e for run in ancestor_runs(ops) for e in await store.effects(run)]
        if amended is not None and now.plan_json == amended[0]:
            await store.commit(record.id, update=RunUpdate(plan_json=amended[1]))
        if adopt is not None:
            record, ops = await _adopt_plan(services, record, ops, llm, adopt(ops, llm, ledger))
        first = next(one for one in found.checkpoints if one.seq == 0)
        recorded = _Recorded(ops, llm, ledger, elsewhere, found.answers, all_caught=waited, resumed=resumed)
        known = None if adopt is not None else plan
        plan = _with_code(known or Plan.from_json(record.plan_json), code)
        recovery = _recovery_of(services, record)
        base = await recovery.get(record.base_snapshot, first.content_key)
        return await _go_on(services, record, plan, function, recorded, recovery, base, ())


async def start(
    services: Services,
    launch: Launch,
    function: Callable[..., Any],
    *,
    created: Callable[[RunId], None],
    code: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Create a run, and run the workflow to its end: as `create` and `drive`, without reading what was just written.
    created: called when the run is stored."""
    async with begun(services, launch) as new:
        created(new.record.id)
        recovery = _recovery_of(services, new.record)
        plan = _with_code(launch.plan, code)
        return await _go_on(services, new.record, plan, function, _Recorded(), recovery, new.snapshot, new.skipped)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What earlier processes recorded of a run. all_caught: the workflow caught all failures so far. resumed: the run
    had stopped."""

    ops: Sequence[OpRecord] = ()
    llm: Sequence[LLMRecord] = ()
    ledger: Sequence[EffectRecord] = ()
    elsewhere: Sequence[EffectRecord] = ()
    answers: Sequence[AnswerRecord] = ()
    all_caught: bool = False
    resumed: bool = False


def _recovery_of(services: Services, record: RunRecord) -> Recovery:
    return Recovery(record.id, services.snapshots, Pins(services.locks), services.emit, services.fetch)


async def _go_on(
    services: Services,
    record: RunRecord,
    plan: Plan,
    function: Callable[..., Any],
    recorded: _Recorded,
    recovery: Recovery,
    base: Snapshot,
    skipped: tuple[Skipped, ...],
) -> Any:
    """Run the workflow from the end of its journal. The caller holds the run."""
    ops, llm, ledger = recorded.ops, recorded.llm, recorded.ledger
    changed = was_changed(plan, ops)
    journal = Journal(
        services.store,
        record,
        ops=ops,
        llm=llm,
        effects=ledger,
        elsewhere=recorded.elsewhere,
        failed=standing_failures(ops, llm, ledger, all_caught=recorded.all_caught),
        was_changed=changed,
        flush=services.snapshots.flush,
        clock=services.clock,
        emit=services.emit,
    )
    services.emit(RunStarted(record, resumed=recorded.resumed or bool(ops or llm or ledger), skipped=skipped))
    worlds = WorldPool(services.backend, spec_of_run(record))
    reuse = reuse_of(services, record, worlds.spec, journal)
    check, asked = Sampler(services.check_reuse), services.reuse_answers
    answers = Answers(services.store, record, services.settings, reuse.flights, check, asked=asked)
    run = Run(
        record=record,
        plan=plan,
        journal=journal,
        snapshots=services.snapshots,
        worlds=worlds,
        calls=LLMCalls(record, plan, journal, services.llm, services.clock, answers, by_branch=True),
        clock=services.clock,
        root=Branch(ROOT, base, checkpoint_id(record.id, 0), made=[StateOrigin(base, "the workspace")]),
        reuse=reuse,
        recovery=recovery,
        costs=CostModel().learn(ops),
        careful=any(row.kind is OpKind.RUN and row.status is OpStatus.FAILED for row in ops),
        was_changed=changed,
    )
    run.worlds.recovery = recovery
    run.worlds.warm = WarmStates(plan, run.worlds.spec)
    run.places = None if services.places is None else services.places(record)
    run.asking = asking_of(run, services.store, ops, recorded.answers)
    try:
        answered = {row.op_id for row in llm}
        return await _unless_cancelled(_run_workflow(run, function, services, answered), services, journal)
    finally:
        try:
            await finish_despite_cancel(journal.behind.ended())
        finally:
            journal.close()  # before the lock is released: then another process may work on the run
            if run.places is not None:
                await run.places.close()
            await run.calls.aclose()
            await run.worlds.close()
            run.reuse.close()
            recovery.close()


async def _adopt_plan(
    services: Services, record: RunRecord, ops: Sequence[OpRecord], llm: Sequence[LLMRecord], made: Adoption
) -> tuple[RunRecord, Sequence[OpRecord]]:
    """Replace the run's plan, and record that in the journal. Returns the new row of the run and its journal."""
    seq = 1 + max([row.seq for row in ops] + [call.seq for call in llm], default=0)
    now = services.clock()
    row = OpRecord(
        run_id=record.id,
        seq=seq,
        key=f"code changed|{seq}",
        op_id=_CHANGE,
        kind=OpKind.CHANGE,
        branch=ROOT,
        status=OpStatus.DONE,
        started_at=now,
        ended_at=now,
        summary=made.summary,
        attrs=made.attrs,
    )
    text = made.plan.to_json()
    await services.store.commit(record.id, ops=[row], update=RunUpdate(plan_json=text))
    return replace(record, plan_json=text), [*ops, row]


def was_changed(plan: Plan, ops: Iterable[OpRecord]) -> bool:
    """Whether a code change was accepted since the run began. Code under `ramify.patched` does not count."""
    accepted = any(row.op_id == _CHANGE and "patches" not in row.attrs for row in ops)
    return accepted or any(op.attrs.get(ADDED) == ACCEPTED for op in plan.ops)  # before it was forked


def _with_code(plan: Plan, code: Mapping[str, str]) -> Plan:
    if not code:
        return plan
    steps = tuple(replace(step, code_digest=code.get(step.name, step.code_digest)) for step in plan.steps)
    changed = {now.name for now, then in zip(steps, plan.steps, strict=True) if now.code_digest != then.code_digest}
    ops = tuple(_as_unknown(op) if op.step in changed else op for op in plan.ops)
    return replace(plan, steps=steps, ops=ops)


def _as_unknown(op: PlanOp) -> PlanOp:
    """Return an operation without what the plan knows of the code of its step, which has changed."""
    return replace(op, attrs={name: value for name, value in op.attrs.items() if name != WORLDLESS})


def reuse_of(services: Services, record: RunRecord, spec: WorldSpec, journal: Journal) -> Reuse:
    """Return the `Reuse` of one run, whose worlds have this specification. Close it when the run ends."""
    seen = partial(world_fingerprint, spec, services.settings.sandbox)
    model = model_of(record, services.settings)
    check = Sampler(services.check_reuse)
    return Reuse(services.store, journal, services.snapshots, services.locks, seen, model, check)


async def _unless_cancelled(work: Coroutine[Any, Any, Any], services: Services, journal: Journal) -> Any:
    """Await `work`; cancel it if `ramify cancel` is called for the run. Raises `LeaseLost` if another process took it
    over."""
    run = journal.run_id
    take_cancel_request(services.locks, run)  # drop a request that came too late for an earlier process
    task = asyncio.ensure_future(work)
    asked = False
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LISTEN_S)
            if not task.done() and (lost := services.store.loss_of(run)) is not None:
                raise lost
            if not task.done() and (
                take_cancel_request(services.locks, run) or await services.store.stop_requested(run)
            ):
                asked = journal.unwinds = True
                task.cancel()
    except BaseException:  # we are cancelled, the database fails, or another process has the run
        journal.unwinds = True
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # its own error has the same cause; taken here, so that asyncio does not print it
        raise
    if asked and task.cancelled():
        raise RunCancelled(f"run {run} was cancelled: `ramify resume {run}` continues it", run_id=run)
    return task.result()


async def _reopen(services: Services, record: RunRecord, new_deadline_s: float | None) -> tuple[RunRecord, bool]:
    """Set the run to RUNNING. Returns its row, and whether it had stopped before."""
    if new_deadline_s is not None:
        record = replace(record, deadline_s=record.consumed_s + new_deadline_s)
    resumed = record.status is not RunStatus.RUNNING
    mixed = mixing(record, services.settings)
    if resumed or new_deadline_s is not None or mixed is not None:
        change = RunUpdate(status=RunStatus.RUNNING, deadline_s=record.deadline_s, settings=mixed)
        await services.store.commit(record.id, update=change)
        record = replace(record, status=RunStatus.RUNNING, settings=mixed or record.settings)
    return record, resumed


def mixing(record: RunRecord, settings: Settings) -> Settings | None:
    """Return new settings for a run that continues with another model than before; None if the model is the same."""
    goes_on = settings.whom == record.settings.whom
    return None if goes_on or record.settings.mixed else replace(record.settings, mixed=True)


async def _run_workflow(run: Run, function: Callable[..., Any], services: Services, answered: set[OpId]) -> Any:
    register_target(function.__module__)
    args, kwargs = codec.decode(run.record.args_json)
    try:
        run.sets.given(function, args, kwargs)
        send_prefix_hint(run, function, answered, services.llm, services.emit)
        result_json = codec.encode(await _call_workflow(run, function, args, kwargs), "its result", unicode=True)
        await run.journal.behind.settled()
        left = await run.end_abandoned_steps()
        run.journal.refuse_when_stopped()
        result = codec.decode(result_json)
    except BaseException as error:
        await asyncio.shield(_end_stopped_run(run, error, services))
        if isinstance(run.journal.stopped, AnswersNeeded):
            raise waiting(run, run.journal.stopped) from None
        if isinstance(error, Exception):
            raise failure_of(run, error) from error
        raise
    run.journal.unwinds = True
    await run.settle(ROOT)
    if left:
        said = "steps that nobody awaited were cancelled when the workflow returned"
        services.emit(Noticed(run.record.id, f"{said}: {_counted(str(row.step) for row in left)}"))
    _report_unused_results(run, services, ended=True)
    _report_effects_in_doubt(run, services)
    await run.journal.finish(RunUpdate(status=RunStatus.DONE, result_json=result_json, error=""), last=True)
    services.emit(RunEnded(run.record, RunStatus.DONE))
    return result


async def _call_workflow(
    run: Run, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    assert run.asking is not None
    run.asking.begin()
    try:
        with entered(RunScope(run, run.root)), ExitsOfRuns():
            work = outcome(function, args, kwargs, run.journal.behind.settled)
            return await InOneProcess(work, f"workflow {run.record.name!r}")
    finally:
        for task in run.sleeping:
            task.cancel(LEFT)  # the workflow does not wait for it any more
        await asyncio.shield(run.asking.end())


async def _end_stopped_run(run: Run, error: BaseException, services: Services) -> None:
    """End a run whose workflow did not return: stop its running steps, and record why it ended."""
    run.journal.unwinds = True
    await run.journal.behind.ended()
    await run.settle(ROOT)
    if run.journal.is_over:  # it was cancelled again meanwhile, and another process may work on it by now
        return
    _report_unused_results(run, services, ended=False)
    unasked: Sequence[str] = ()
    amended: Sequence[OpRecord] = ()
    if isinstance(run.journal.stopped, AnswersNeeded) and run.asking is not None:
        status, why, unasked = RunStatus.WAITING, "", run.asking.not_met
    elif isinstance(error, asyncio.CancelledError):
        status, why = RunStatus.CANCELLED, "cancelled"
    else:
        status, why = RunStatus.FAILED, error_text(error)
        amended = run.journal.ended_with(error)
    await run.journal.finish(RunUpdate(status=status, error=why), unasked=unasked, amended=amended)
    services.emit(RunEnded(run.record, status))


def _report_unused_results(run: Run, services: Services, *, ended: bool) -> None:
    left = run.journal.unused_results(ended=ended)
    if left:
        said = _counted(f"{row.step} ({why})" for row, why in left)
        services.emit(Noticed(run.record.id, f"recorded results that were not used: {said}"))


def _report_effects_in_doubt(run: Run, services: Services) -> None:
    """Report effects in doubt after which the workflow went on by itself, for example after a step's timeout."""
    doubts = [one.step for one in run.journal.effects_under(ROOT) if one.status in DOUBTFUL]
    if doubts:
        services.emit(Noticed(run.record.id, f"effects with an unknown outcome: {_counted(doubts)}"))


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{name}{f' x {times}' if times > 1 else ''}" for name, times in Counter(names).items())
