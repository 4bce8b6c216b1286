"""A run of a workflow under the decorators: the workflow function is replayed, and the journal answers for the past.

**The big idea.** A workflow is plain Python. The runtime does not look inside it while it runs. It only sees the
calls
that cross a boundary: a step, a fork, a merge, a model call. Each of these calls is an operation of the plan and has
a key, its place in the workflow. It is performed at most once per key and state:

- If the journal has the key, and the branch is in the state where the recorded call began, the call returns the
  recorded result, and the branch moves to the recorded snapshot.
- Otherwise the call is performed, its world is sealed if the plan has a SEAL there, and both are committed in one
  transaction before the workflow sees the result; if only a model call can follow, before that call's answer is
  recorded (`step_commits.py`). The workflow always sees the decoded recorded value.

So a run that was killed at any point is resumed by calling the workflow function again: it passes the recorded
operations quickly, without mounting a world, and continues where the journal ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from ramify.compiler.plan import OpId, OpKind, Plan, PlanOp
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.effects.fence import EffectfulStep
from ramify.runtime.errors import NotAwaited, NotInARun
from ramify.runtime.estimates.cost_model import CostModel
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.execution.recorded_sets import RecordedSets
from ramify.runtime.execution.streamed_answers import Answered
from ramify.runtime.journal.journal import Journal
from ramify.runtime.journal.recorded_run import SEALED_BEFORE
from ramify.runtime.records import ROOT, BranchPath, OpRecord, OpStatus, RunRecord
from ramify.runtime.reuse.reuse import Reuse
from ramify.runtime.store.engines import finish_despite_cancel
from ramify.runtime.user_code.call_sites import CallSite, find_op
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.runtime.user_code.sandbox import Sandbox
from ramify.runtime.user_code.scope import current_scope
from ramify.runtime.user_code.workflow_tasks import LEFT, BegunStep, TaskWaits
from ramify.runtime.worlds.pinned_seal import sealed as sealed_world
from ramify.runtime.worlds.recovery import Recovery
from ramify.runtime.worlds.world_pool import Branch, StateOrigin, WorldPool
from ramify.sandboxes.errors import SandboxError
from ramify.serving.types import ChatRequest, ChatResult

if TYPE_CHECKING:
    from ramify.runtime.execution.placed_steps import Places
    from ramify.runtime.execution.question_waits import QuestionWaits


@dataclass(eq=False, slots=True)
class Run:
    """The state that the operations of one run share."""

    record: RunRecord
    plan: Plan
    journal: Journal
    snapshots: SnapshotStore
    worlds: WorldPool
    calls: LLMCalls
    clock: Callable[[], float]
    root: Branch
    reuse: Reuse
    recovery: Recovery
    costs: CostModel = field(default_factory=CostModel)
    # the steps that were called, by name: their compensate hooks are needed later
    steps: dict[str, EffectfulStep] = field(default_factory=dict)
    # open questions (None: the front end handles them itself), and the rows of open questions by key
    asking: QuestionWaits | None = None
    questions: dict[str, OpRecord] = field(default_factory=dict)
    # a step failed in an earlier process of this run: unsealed changes are sealed before the next step
    careful: bool = False
    # which recorded values are sets
    sets: RecordedSets = field(default_factory=RecordedSets)
    # a code change was accepted since the run began
    was_changed: bool = False
    # the machines where steps of branches may run (None: here)
    places: Places | None = None
    # the tasks that run steps at this moment, with their branches
    working: dict[asyncio.Task[Any], BranchPath] = field(default_factory=dict)

    # the steps that were called and have not ended, by key
    begun: dict[str, BegunStep] = field(default_factory=dict)
    # which of their tasks somebody waited for, and the rows of abandoned steps that were stopped
    waits: TaskWaits = field(default_factory=TaskWaits)
    left: list[OpRecord] = field(default_factory=list)
    # the number of operations in progress that are neither steps nor model calls
    at_work: int = 0
    sleeping: set[asyncio.Task[Any]] = field(default_factory=set)  # the tasks in `ramify.sleep`
    # the tasks that prefork worlds during model calls, and that send prefix hints
    ahead: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Mark an operation as in progress: the run does not stop for its open questions meanwhile, and no step's
        commit goes on behind it, which would need the locks and the worlds of the branches."""
        self.at_work += 1
        try:
            await self.journal.behind.ended()
            yield
        finally:
            self.at_work -= 1

    def works(self) -> bool:
        """Whether an operation is in progress that does not wait for a person."""
        steps = any(begun.started and not begun.ended for begun in self.begun.values())
        waits = self.journal.turns.waiting or self.journal.await_cancels > 0
        return steps or self.at_work > 0 or bool(self.sleeping) or self.calls.under_way > 0 or waits

    def op(self, kind: OpKind, site: CallSite, step: str | None = None) -> PlanOp:
        return find_op(self.plan, kind, site, step)

    def seal_op(self, op: PlanOp) -> PlanOp | None:
        """Return the SEAL that the plan puts after an operation, or None. A graph break is its own SEAL."""
        if op.kind is OpKind.BREAK:
            return op if op.attrs.get("seal", True) else None
        return self.plan.after(op, OpKind.SEAL)

    async def end_abandoned_steps(self) -> list[OpRecord]:
        """After the workflow has returned, stop the steps that it stopped waiting for, for example because another
        step failed or a timeout passed. Returns their rows.

        Raises `NotAwaited` for steps that nobody ever waited for. Steps that the workflow cancelled do not count.
        """
        mine = asyncio.current_task()
        while self.begun:
            await asyncio.sleep(0)  # lets cancelled steps end and scheduled steps begin
            left = [begun for begun in self.begun.values() if not begun.ended]
            stopping = {begun.task for begun in left if begun.task is not None and begun.task.cancelling()}
            running = [begun for begun in left if begun.started and begun.task not in stopping]
            forgotten = [begun for begun in running if not self.waits.for_step(begun, mine)]
            if not stopping and not running:
                forgotten = left  # coroutines that nobody awaited
            if forgotten:
                self._refuse(forgotten)
            for task in {begun.task for begun in running if begun.task is not None}:
                task.cancel(LEFT)
                stopping.add(task)
            if not stopping:
                break
            await asyncio.wait(stopping)
        for row in self.left:
            await self.journal.record(row)
        return self.left

    def _refuse(self, forgotten: list[BegunStep]) -> NoReturn:
        names = ", ".join(sorted({begun.step.__qualname__ for begun in forgotten}))
        for begun in forgotten:
            if not begun.started:
                begun.step.close()
        raise NotAwaited(
            f"the workflow returned while {names} had not ended: nobody awaited it, so it is stopped, and its "
            "changes are lost. Await it, start it in an asyncio.TaskGroup or an asyncio.gather, or cancel it"
        )

    async def settle(self, under: BranchPath) -> None:
        """Stop the steps that still run on a branch or below it, because their block has ended."""
        mine = asyncio.current_task()
        late = [
            task
            for task, path in self.working.items()
            if task is not mine and (path == under or path.startswith(f"{under}/"))
        ]
        for task in late:
            task.cancel()
        if under == ROOT:
            late += self.ahead
            for task in self.ahead:
                task.cancel()
        if late:
            await asyncio.wait(late)


def start_prefork(scope: RunScope, op: PlanOp) -> None:
    """Start the plan's PREFORK for this operation, which is about to wait for the model, in the background."""
    prefork = scope.run.plan.prefork(op.id)
    if prefork is None:
        return
    key = scope.run.journal.key(scope.branch.path, prefork.id)
    if not scope.run.journal.knows(key):
        task = asyncio.get_running_loop().create_task(_make_ready(scope, prefork, key))
        scope.run.ahead.add(task)
        task.add_done_callback(scope.run.ahead.discard)


async def _make_ready(scope: RunScope, prefork: PlanOp, key: str) -> None:
    """Fork the worlds. A failure is only recorded: the fork operation makes its worlds itself and reports errors."""
    run, branch, width = scope.run, scope.branch, int(prefork.attrs["width"])
    await run.journal.behind.ended()  # the worlds are made of the state after the step
    begun, snapshot = run.clock(), branch.snapshot.id
    row = new_row(
        scope, OpKind.PREFORK, prefork.id, key, snapshot_in=snapshot, snapshot_out=snapshot, started_at=begun
    )
    try:
        took = await run.worlds.make_ready(branch, width)
    except SandboxError as error:
        await run.journal.record(replace(row, status=OpStatus.FAILED, error=str(error), ended_at=run.clock()))
        return
    attrs = {"width": str(width), "fork_ms": f"{took * 1000:.3f}"}
    said = f"{width} worlds made ready"
    await run.journal.record(replace(row, attrs=attrs, summary=said, ended_at=run.clock()))


async def seal_before(scope: RunScope, key: str) -> None:
    """Seal the branch's state before an operation that the plan does not expect there.

    A plan omits a SEAL only if the next operation on the world is a step whose failure is not caught. If another
    operation follows, which the compiler did not see, the SEAL is made up for, under the plan's catch-all operation.
    `key`: the key of that operation. The caller holds the branch's lock.
    """
    run, branch = scope.run, scope.branch
    key = _seal_key(key)
    await go_where_sealed_late(scope, key)
    if run.journal.knows(key) and _went_there(scope, key):
        return
    row = run.journal.served(key, at=branch.snapshot)
    if row is not None and row.snapshot_out is not None:
        await _go_to(scope, row)
    elif branch.unsealed and branch.world is not None:
        begun = run.clock()
        async with run.reuse.pins.held():
            sealed = await sealed_world(branch.world, run.reuse.pins)
            await finish_despite_cancel(_record_seal(scope, key, sealed, begun))


async def go_where_sealed_late(scope: RunScope, key: str) -> None:
    """Bring the branch to the state that an earlier process sealed late between the steps that the journal answered
    for and the operation with this key. Another task may have had it sealed, whose operation comes later this time.
    The caller holds the branch's lock."""
    run, branch = scope.run, scope.branch
    if not branch.owes:
        return
    row = run.journal.sealed_late(branch.path, branch.snapshot.id, branch.owes, key)
    if row is not None:
        await _go_to(scope, row)


async def _go_to(scope: RunScope, row: OpRecord) -> None:
    """Bring the branch to the state of a recorded seal."""
    assert row.snapshot_out is not None, "a seal makes a state"
    sealed = await scope.run.recovery.get(row.snapshot_out, row.result_digest)
    scope.branch.checkpoint = scope.run.journal.checkpoint_of(row)
    _stands_sealed(scope.branch, sealed)


async def _record_seal(scope: RunScope, key: str, sealed: Snapshot, begun: float) -> None:
    """Both or none: record the seal, and bring the branch to its state."""
    run, branch = scope.run, scope.branch
    changes = {"result_digest": sealed.content_key, "attrs": {"tier": sealed.tier.value}}
    states = {"snapshot_in": branch.snapshot.id, "snapshot_out": sealed.id, "started_at": begun}
    row = new_row(scope, OpKind.SEAL, run.plan.catch_all.id, key, **states, **changes)
    await run.journal.record(row, checkpoint=(branch, sealed, "sealed late"))
    branch.unsealed = False
    _stands_sealed(branch, sealed)


def _stands_sealed(branch: Branch, sealed: Snapshot) -> None:
    branch.stands(StateOrigin(sealed, "what was sealed late", refused="the plan seals nothing there"))


async def go_where_sealed_before(scope: RunScope, key: str) -> None:
    """If an earlier process sealed the branch's state before this operation, bring the branch there. What follows on
    the branch began in that state, also if the operation itself is not begun again, and is cancelled at once."""

    async def go() -> None:
        async with scope.run.busy(), scope.branch.lock:
            await seal_before(scope, key)

    if scope.run.journal.knows(_seal_key(key)) and not _went_there(scope, _seal_key(key)):
        await finish_despite_cancel(go())


def _went_there(scope: RunScope, seal_key: str) -> bool:
    """Whether the branch is or was in the state of that seal: another operation may have brought it there."""
    return scope.branch.was_at(scope.run.journal.row(seal_key).snapshot_out)


def _seal_key(key: str) -> str:
    return f"{key}{SEALED_BEFORE}"


def new_row(scope: RunScope, kind: OpKind, op: OpId, key: str, **changes: Any) -> OpRecord:
    """Return a new DONE row for the scope's branch, which ends now."""
    blank = OpRecord(
        run_id=scope.run.record.id,
        seq=0,
        key=key,
        op_id=op,
        kind=kind,
        branch=scope.branch.path,
        status=OpStatus.DONE,
        ended_at=scope.run.clock(),
    )
    return replace(blank, **changes)


@dataclass(frozen=True, slots=True)
class StepFrame:
    """The step that is running, for calls inside it."""

    name: str
    key: str
    op: PlanOp
    sandbox: Sandbox | None
    attempt: int = 0


class _CallPlace(TypedDict):
    op_id: OpId
    place: str
    branch: BranchPath
    step_key: str | None
    order: str  # of a set, as `UNORDERED`


@dataclass(frozen=True, slots=True)
class RunScope:
    """The scope of a workflow under the decorators: a branch of a run, and the running step if there is one."""

    run: Run
    branch: Branch
    step: StepFrame | None = None

    @property
    def sandbox(self) -> Sandbox | None:
        return self.step.sandbox if self.step else None

    def call_llm(self, requests: list[ChatRequest], site: CallSite, said: CallSLO) -> Awaitable[list[ChatResult]]:
        """Return the awaitable of one stage of model calls. Keys are taken at the call, in program order."""
        return self.run.calls.stage(requests, said=said, **self._call_place(site))

    def stream_llm(self, request: ChatRequest, site: CallSite, said: CallSLO, pace_s: float | None) -> Answered:
        """Return the answer to one model call piece by piece, and then whole. Its key is taken at the call."""
        return self.run.calls.stream(request, said=said, pace_s=pace_s, **self._call_place(site))

    def _call_place(self, site: CallSite) -> _CallPlace:
        if self.step is not None:
            op, place, order = self.step.op, f"{self.step.key}|a{self.step.attempt}", ""
        else:
            op = self.run.op(OpKind.CALL_LLM, site)
            place, order = f"{self.branch.path}|{op.id}", self.run.sets.order_of(op)
            start_prefork(self, op)
        step_key = self.step.key if self.step else None
        return {"op_id": op.id, "place": place, "branch": self.branch.path, "step_key": step_key, "order": order}


def refuse_inside_step(what: str) -> None:
    """Raise `NotInARun` inside a step: a step is one operation on one world, and cannot fork, merge or start
    steps."""
    scope = current_scope(what)
    if isinstance(scope, RunScope) and scope.step is not None:
        raise NotInARun(f"{what} inside step {scope.step.name!r}: do it in the workflow")


_OP = OpId("patched")


def is_patched(scope: RunScope, name: str) -> bool:
    """Whether the branch runs the new code of `ramify.patched(name)`. Answered once per branch and its forks, and
    recorded: a run that has recorded operations beyond this point keeps the old code. Call it on the run's loop."""
    journal, path = scope.run.journal, scope.branch.path
    for branch in _and_above(path):
        key = _key(branch, name)
        if journal.knows(key):
            return bool(codec.decode(journal.row(key).result_json or "null"))
    answer = not journal.is_replayed(path)
    said = codec.encode(answer)
    at = scope.run.clock()
    row = new_row(
        scope,
        OpKind.CHANGE,
        _OP,
        _key(path, name),
        result_json=said,
        result_digest=codec.digest_text(said),
        started_at=at,
        summary=f"patched({name!r}): the {'new' if answer else 'old'} code",
    )
    journal.record_with_next(row)
    return answer


def _key(branch: BranchPath, name: str) -> str:
    return f"{branch}|{_OP}|{codec.digest(name)[:16]}"


def _and_above(path: BranchPath) -> list[BranchPath]:
    parts = path.split("/")
    return [BranchPath("/".join(parts[:count])) for count in range(len(parts), 0, -1)]
