"""Steps of a fork's branches that run on other machines.

Another machine gets one step, not the branch. The step begins with a sealed state of its branch. The machine answers
with the result and the new sealed state, which it has uploaded to the bucket before. Only the process that works on
the run writes to its journal. So keys, order and rows do not depend on where a step ran, and a machine that dies has
changed nothing. Code between the steps, questions, nested forks and merges stay where the run is
(docs/decisions/121).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from ramify.compiler.plan import Effect, OpId, OpKind
from ramify.fork_engine.types import ProcessTier, Snapshot, SnapshotId
from ramify.runtime.codec import codec
from ramify.runtime.execution.step_call import StepCall, StepDef
from ramify.runtime.execution.step_commits import NODE, Executed
from ramify.runtime.records import ROOT, BranchPath, RunId
from ramify.runtime.user_code.call_slo import NOTHING_SAID, CallSLO, call_slo
from ramify.runtime.user_code.sandbox import Sandbox
from ramify.runtime.worlds.world_pool import Branch
from ramify.sandboxes.contract import RunResult
from ramify.serving.types import ChatRequest, ChatResult


@dataclass(frozen=True, slots=True)
class StepOrder:
    """An attempt at a step. id: of this sending. code: the digest of the step's code. state: what its branch is in;
    None for a step without a world. aside: its world is not kept. consumed_s: of the run's deadline. said: what
    the workflow around it said of model calls."""

    id: str
    run: RunId
    branch: BranchPath
    key: str
    op: OpId
    step: str
    code: str
    arguments: str
    attempt: int
    state: SnapshotId | None
    aside: bool
    consumed_s: float
    said: CallSLO = NOTHING_SAID

    @property
    def in_branch(self) -> bool:
        """Whether it runs in the world of its branch."""
        return self.state is not None and not self.aside


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """How an attempt ended.

    sealed: the state that it led to; None if the step left its world as it was. attrs: of the step's row. last: its
    last command. error: what it raised; stops: that is the machine's trouble, and not the step's result. refused: why
    it did not begin there, or must not go on there; then nothing counts that it did. busy: whether it left processes
    running.
    """

    result_json: str = "null"
    sealed: Snapshot | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)
    last: RunResult | None = None
    error: BaseException | None = None
    stops: bool = False
    refused: str = ""
    busy: bool = False


Asking = Callable[[Sequence[ChatRequest], CallSLO], Awaitable[list[ChatResult]]]
"""Makes the model calls of a step. Their keys are taken when it is called."""


class Place(Protocol):
    """A slot of another machine, for one step."""

    @property
    def name(self) -> str: ...

    async def perform(self, order: StepOrder, ask: Asking) -> StepAnswer | None:
        """Run the step there. None: that machine died, and nothing counts that it did. Raises if that happened too
        often, or if no machine can be asked any more."""
        ...


class Places(Protocol):
    """The machines where steps of one run's branches may run. This process is one of them."""

    @property
    def slots(self) -> int:
        """How many steps all of them take at the same time."""
        ...

    def place(self, branch: BranchPath, state: SnapshotId | None) -> AbstractAsyncContextManager[Place | None]:
        """Wait for a slot, and hold it in the block. None: it is one of this process."""
        ...

    def stays(self, step: str, why: str) -> None:
        """A step does not travel in this run."""
        ...

    def stayed(self, step: str) -> bool:
        """Whether it was told so."""
        ...

    def keeps_processes(self, branch: BranchPath) -> bool:
        """Whether a step of that branch left processes running on another machine."""
        ...

    def released(self, branches: Sequence[BranchPath]) -> None:
        """These branches have ended. Does not wait."""
        ...

    async def close(self) -> None:
        """The run has ended in this process."""
        ...


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What another machine answered."""

    call: StepCall
    answer: StepAnswer
    node: str
    attempt: int
    begun: float
    entry: Snapshot | None

    @property
    def face(self) -> Sandbox:
        """Stands for the sandbox that the step had there: it knows the last command."""
        face = Sandbox(None)
        face.last = self.answer.last
        return face

    def result(self) -> tuple[Executed, Snapshot | None]:
        """What the step has given, and the state that its branch is in. Raises what the step raised."""
        if self.answer.error is not None:
            raise self.answer.error
        text = self.answer.result_json
        attrs = {**self.answer.attrs, NODE: self.node, **({"attempt": str(self.attempt)} if self.attempt else {})}
        value = codec.decode(text)
        done = Executed(text, codec.digest_text(text), value, self.entry, self.begun, lineage_key=None, attrs=attrs)
        return done, self.entry if self.answer.sealed is None else self.answer.sealed


def most_at_once(places: Places | None, step: StepDef) -> int:
    """How many calls of a step may be at work at the same time, if the program does not say it."""
    cores = os.cpu_count() or 1
    if places is None or step.reuse or step.effect is Effect.IRREVERSIBLE or places.stayed(step.name):
        return cores  # they stay here
    return max(cores, places.slots)


async def stays_here(call: StepCall) -> bool:
    """Whether a call of a step is not one that travels. The caller has excluded those with effects, and those whose
    result may be reused."""
    places, branch = call.scope.run.places, call.scope.branch
    if places is None or branch.path == ROOT or call.op.kind is not OpKind.RUN or places.stayed(call.step.name):
        return True
    planned = call.scope.run.plan.step(call.step.name)
    return planned is None or not planned.code_digest or not await _is_sealed_whole(branch)


async def _is_sealed_whole(branch: Branch) -> bool:
    """Whether the branch's snapshot is all that its world has. Processes do not travel."""
    if branch.unsealed or branch.lost or branch.snapshot.tier not in (ProcessTier.NONE, ProcessTier.DROPPED):
        return False
    return branch.world is None or not await branch.world.background_processes()


async def perform_elsewhere(
    call: StepCall, attempt: int, held: AsyncExitStack, begun: float, *, on_world: bool
) -> Elsewhere | None:
    """Run the step's code on another machine, if it travels and one has a slot for it. None: run it here; `held` has
    this process's slot then."""
    run, branch = call.scope.run, call.scope.branch
    places, planned = run.places, run.plan.step(call.step.name)
    if await stays_here(call) or places is None or planned is None:
        return None
    state = branch.snapshot.id if on_world else None
    place_of_calls = f"{call.key}|a{attempt}"

    def ask(requests: Sequence[ChatRequest], said: CallSLO) -> Awaitable[list[ChatResult]]:
        where = {"op_id": call.op.id, "place": place_of_calls, "branch": branch.path, "step_key": call.key}
        return run.calls.stage(list(requests), said=said, **where)  # type: ignore[arg-type]  # each is of its type

    while True:
        try:
            async with AsyncExitStack() as slot:
                place = await slot.enter_async_context(places.place(branch.path, state))
                if place is None:
                    held.push_async_exit(slot.pop_all())
                    return None
                run.journal.refuse_when_stopped()  # it may have waited for long
                run.journal.forget_attempt(place_of_calls)  # the calls that are answered are served
                order = StepOrder(
                    id=secrets.token_hex(8),
                    run=run.record.id,
                    branch=branch.path,
                    key=call.key,
                    op=call.op.id,
                    step=call.step.name,
                    code=planned.code_digest,
                    arguments=call.arguments,
                    attempt=attempt,
                    state=state,
                    aside=call.aside,
                    consumed_s=run.journal.consumed_s(),
                    said=call_slo(),
                )
                answer = await place.perform(order, ask)
            if answer is not None and answer.stops and answer.error is not None:
                raise answer.error
        except Exception as error:  # noqa: BLE001  # no result of the step: the run ends with it, a resume tries again
            run.journal.stop(error)
            raise run.journal.stopped or error from None
        if answer is None:
            continue
        if answer.refused:
            places.stays(call.step.name, answer.refused)
            return None
        return Elsewhere(call, answer, place.name, attempt, begun, branch.snapshot if on_world else None)
