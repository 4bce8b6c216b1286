"""One run of a plan under the decorators: the workflow function is replayed, the journal answers for what is done.

**The big idea.** A workflow is plain Python. The runtime never looks inside it while it runs; it only hears of
the calls that cross a boundary: a step, a fork, a merge, a model call. Each of them is an operation of the plan,
has a key that says where it stands in the workflow, and is done at most once per key and state: a call whose key the
journal knows, on a branch that stands where the recorded one began, gets the recorded result and moves its branch to
the recorded snapshot; any other call is performed, its world sealed where the plan says SEAL, and both committed in
one transaction before the workflow sees the result. What it sees is always the recorded value, decoded.
So a run that was killed anywhere is resumed by calling the workflow again: it rushes through what is recorded,
mounting nothing, and goes on where the record ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.compiler.plan import OpId, OpKind, Plan, PlanOp
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.calls import LLMCalls
from ramify.runtime.journal import Journal
from ramify.runtime.records import BranchPath, OpRecord, OpStatus, RunRecord
from ramify.runtime.sandbox import Sandbox
from ramify.runtime.sites import CallSite, find_op
from ramify.runtime.worlds import Branch, WorldPool
from ramify.serving.types import ChatRequest, ChatResult


@dataclass(eq=False, slots=True)
class Run:
    """Everything that the operations of one run share."""

    record: RunRecord
    plan: Plan
    journal: Journal
    snapshots: SnapshotStore
    worlds: WorldPool
    calls: LLMCalls
    clock: Callable[[], float]
    root: Branch
    # lineage key -> the row that another branch is computing at this moment (single flight)
    computing: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    # lineage key -> the key of a row of this run that can be taken over
    reusable: dict[str, str] = field(default_factory=dict)
    # the tasks in which steps run at this moment, by the branch that they run on
    working: dict[asyncio.Task[Any], BranchPath] = field(default_factory=dict)

    def op(self, kind: OpKind, site: CallSite) -> PlanOp:
        return find_op(self.plan, kind, site)

    def seal_op(self, op: PlanOp) -> PlanOp | None:
        """The SEAL that the plan puts after an operation; a graph break seals under its own name."""
        if op.kind is OpKind.BREAK:
            return op if op.attrs.get("seal", True) else None
        return self.plan.after(op, OpKind.SEAL)

    async def settle(self, under: BranchPath) -> None:
        """Stop the steps that still run on a branch or below it: the block that they belong to is left."""
        mine = asyncio.current_task()
        late = [
            task
            for task, path in self.working.items()
            if task is not mine and (path == under or path.startswith(f"{under}/"))
        ]
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


def new_row(scope: RunScope, kind: OpKind, op: OpId, key: str, **changes: Any) -> OpRecord:
    """A row of the scope's branch, done now."""
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
    """The step that runs, for what is called inside it."""

    name: str
    key: str
    op: PlanOp
    sandbox: Sandbox | None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class RunScope:
    """The scope of the decorators: a branch of a run, and the step in it if there is one."""

    run: Run
    branch: Branch
    step: StepFrame | None = None

    @property
    def sandbox(self) -> Sandbox | None:
        return self.step.sandbox if self.step else None

    def call_llm(self, requests: list[ChatRequest], site: CallSite, method: str) -> Awaitable[list[ChatResult]]:
        """Not a coroutine function: keys are given out at the call, in program order."""
        if self.step is not None:
            op, place = self.step.op, f"{self.step.key}|a{self.step.attempt}"
        else:
            op = self.run.op(OpKind.CALL_LLM, site)
            place = f"{self.branch.path}|{op.id}"
        return self.run.calls.stage(
            requests,
            op_id=op.id,
            place=place,
            branch=self.branch.path,
            step_key=self.step.key if self.step else None,
        )
