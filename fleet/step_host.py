"""The steps of branches that a fleet has sent to this node.

A step begins with a state that the bucket has, and when it is answered, the bucket has the state that it led to.
Nothing is written to the journal here: the process that works on the run does that, and it also makes the model calls
of the step. If a step fails, or is stopped, its world is dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from ramify.code_changes import since
from ramify.compiler.plan import Plan
from ramify.decorators import load_workflow, steps_of
from ramify.fleet.carried_errors import CarriedError, carried
from ramify.fleet.errors import NodeUnfit
from ramify.fleet.step_calls import CallsOfSteps, ModelAsk, StepAsks, Told
from ramify.fleet.world_host import fetched, uploaded
from ramify.fork_engine.errors import RemoteError, RemoteObjectAltered, RemoteObjectMissing
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.open_bucket import OpenBucket
from ramify.runtime.codec import codec
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.errors import RunNotFound, TargetBroken, TargetNotFound, WorkflowChanged
from ramify.runtime.execution.driver import reuse_of
from ramify.runtime.execution.placed_steps import StepAnswer, StepOrder
from ramify.runtime.execution.run import Run, RunScope
from ramify.runtime.execution.step_call import StepCall, StepDef, run_attempt
from ramify.runtime.execution.step_commits import attrs_of_seal, seal_world
from ramify.runtime.execution.step_world import StepWorld
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import ROOT, BranchPath, CheckpointId, RunId, RunRecord
from ramify.runtime.user_code.call_slo import said_before
from ramify.runtime.user_code.program_exits import work_for_others
from ramify.runtime.user_code.sandbox import Sandbox
from ramify.runtime.worlds.recovery import Recovery, stand_in
from ramify.runtime.worlds.world_pool import Branch, WorldPool, spec_of_run
from ramify.sandboxes.contract import World
from ramify.serving.client import LLMClient
from ramify.session import Runtime


@dataclass(frozen=True, slots=True)
class StepReply:
    """What a step says: how it ended, or what it asks meanwhile. error: what it raised; `answer` is without it."""

    answer: StepAnswer | None = None
    error: CarriedError | None = None
    asks: tuple[ModelAsk, ...] = ()


class _Refused(Exception):
    """The step cannot run here."""


@dataclass(slots=True)
class _Working:
    asks: StepAsks
    task: asyncio.Task[StepReply]
    refused: str = ""


class _Fetching(Recovery):
    """States come from the bucket, and are not recomputed here."""

    bucket: OpenBucket

    async def whole(self, branch: Branch) -> Snapshot:
        return await fetched(self.snapshots, self.bucket, branch.snapshot.id)


@dataclass(frozen=True, slots=True)
class _OfRun:
    """What the steps of a run share here. known: its steps, by name. code: the digests of their code. branches: with
    their worlds."""

    run: Run
    calls: CallsOfSteps
    known: dict[str, StepDef]
    code: dict[str, str]
    branches: dict[BranchPath, Branch] = field(default_factory=dict)

    def step(self, order: StepOrder) -> StepDef:
        if order.step not in self.known:
            raise _Refused("it is not a name of its workflow's module")
        if self.code.get(order.step) != order.code:
            raise WorkflowChanged(
                f"the code of step {order.step!r} is another one there: have the same code on each node",
                steps=(order.step,),
            )
        try:
            codec.decode(order.arguments)
        except Exception as error:  # a class of the program, for example, that is not found from the workflow
            raise _Refused(f"its arguments cannot be read there: {error}") from error
        self.run.steps[order.step] = self.known[order.step]
        return self.known[order.step]

    def branch(self, order: StepOrder) -> Branch:
        """The branch of an order, in the state that the order begins with."""
        blank = Branch(order.branch, stand_in(order.state or SnapshotId(""), ""), CheckpointId(""))
        if not order.in_branch:
            return blank
        branch = self.branches.setdefault(order.branch, blank)
        if branch.snapshot.id != order.state:
            branch.snapshot = blank.snapshot
        return branch

    async def close(self) -> None:
        await self.run.worlds.close()
        self.run.reuse.close()
        self.run.recovery.close()


class StepHost:
    """Steps of branches in the home of one runtime, which has a bucket. On its event loop. node: this one's name."""

    def __init__(self, runtime: Runtime, bucket: OpenBucket, node: str) -> None:
        self._runtime, self._bucket, self._node = runtime, bucket, node
        self._runs: dict[RunId, asyncio.Task[_OfRun]] = {}
        self._working: dict[str, _Working] = {}  # by the id of their order

    async def perform(self, order: StepOrder) -> StepReply:
        """Begin a step, and return what it says first."""
        work_for_others()

        def refuse(why: str) -> None:
            working.refused = why
            working.task.cancel()

        asks = StepAsks(refuse)
        working = self._working[order.id] = _Working(asks, asyncio.ensure_future(self._perform(order, asks)))
        return await self.next(order.id)

    async def next(self, id: str) -> StepReply:
        """Wait for what a step says next."""
        working = self._working[id]
        asked = asyncio.ensure_future(working.asks.changed.wait())
        try:
            await asyncio.wait({working.task, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if not working.task.done():
            return StepReply(asks=working.asks.take())
        self._working.pop(id, None)
        if working.refused:
            return StepReply(StepAnswer(refused=working.refused))
        if working.task.cancelled():
            return StepReply(StepAnswer(), carried(asyncio.CancelledError()))
        return working.task.result()

    def tell(self, id: str, number: int, told: Told) -> None:
        """What became of a `ModelAsk` of a step."""
        if (working := self._working.get(id)) is not None:
            working.asks.told(number, told)

    async def stop(self, id: str) -> None:
        """End a step, and return once it has ended."""
        if (working := self._working.get(id)) is not None:
            working.task.cancel()
            await asyncio.wait({working.task})
            self._working.pop(id, None)

    async def release(self, run: RunId, branches: Sequence[BranchPath]) -> None:
        """End the worlds of branches, and of those below them."""
        if (making := self._runs.get(run)) is None or not making.done() or _failed(making):
            return
        there, above = making.result(), tuple(f"{one}/" for one in branches)
        over = [one for one in there.branches if f"{one}/".startswith(above)]
        for branch in [there.branches.pop(one) for one in over]:
            await there.run.worlds.drop(branch)

    async def end(self, run: RunId) -> None:
        """End all worlds of a run."""
        if (making := self._runs.pop(run, None)) is not None:
            await asyncio.wait({making})
            if not _failed(making):
                await making.result().close()

    async def close(self) -> None:
        """End all steps and worlds."""
        for id in list(self._working):
            await self.stop(id)
        for run in list(self._runs):
            await self.end(run)

    async def _perform(self, order: StepOrder, asks: StepAsks) -> StepReply:
        face, begun = list[Sandbox](), False
        try:
            there = await self._of_run(order)
            step = there.step(order)
            there.calls.asks[order.key], begun = asks, True
            try:
                with said_before(order.said):
                    return StepReply(await self._run(there, step, order, face))
            finally:
                there.calls.asks.pop(order.key, None)
        except _Refused as error:
            return StepReply(StepAnswer(refused=str(error)))
        except (RemoteObjectMissing, RemoteObjectAltered) as error:  # the program may have it, or recompute it
            return StepReply(StepAnswer(refused=f"its state did not arrive: {error}"))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # it is raised where the run is
            stops = not begun or isinstance(error, RemoteError)
            return StepReply(StepAnswer(last=face[0].last if face else None, stops=stops), carried(error))

    async def _run(self, there: _OfRun, step: StepDef, order: StepOrder, faces: list[Sandbox]) -> StepAnswer:
        run, branch = there.run, there.branch(order)
        call = StepCall(
            RunScope(run, branch), step, run.plan.op(order.op), order.key, "", Encoded.of_text(order.arguments)
        )
        if order.state is None:
            return StepAnswer((await run_attempt(call, None, order.attempt)).text)
        call = replace(call, aside=order.aside)
        attrs = dict[str, str]()
        async with branch.lock, AsyncExitStack() as held:
            own = StepWorld(call, order.attempt, held, attrs, reuses=False)
            try:
                faces.append(await own.face())
                result = (await run_attempt(call, faces[0], order.attempt)).text
                await own.ended()
                sealed, timings = await self._sealed(call, own, held)
            except BaseException:
                await held.aclose()
                await own.ended()
                await run.worlds.drop(branch)
                raise
            attrs |= {**timings, **({} if own.fork_s is None else {"fork_ms": f"{own.fork_s * 1000:.3f}"})}
            busy = False
            if order.aside:
                await run.worlds.drop(branch)
            elif own.world is not None:
                busy = await own.world.background_processes() > 0
                await run.worlds.rest(branch)
        return StepAnswer(result, sealed, attrs, faces[0].last, busy=busy)

    async def _sealed(
        self, call: StepCall, own: StepWorld, held: AsyncExitStack
    ) -> tuple[Snapshot | None, dict[str, str]]:
        """Seal what a step left, and return once the bucket has it. None: it left its world as it was."""
        if own.world is None:
            return None, {}
        if call.aside:  # it must have changed nothing
            _, timings = await seal_world(call, own.world, own.fork_s, held)
            return None, timings
        run, branch, begun, before = call.scope.run, call.scope.branch, time.perf_counter(), own.world.snapshot
        sealed = await run.recovery.sealed(lambda: _seal(own.world))
        timings = await attrs_of_seal(run.snapshots, before, sealed, time.perf_counter() - begun)
        await uploaded(self._bucket, sealed.id)
        branch.snapshot = sealed
        return sealed, timings

    async def _of_run(self, order: StepOrder) -> _OfRun:
        if (making := self._runs.get(order.run)) is None or _failed(making):
            making = self._runs[order.run] = asyncio.ensure_future(self._made(order))
        return await asyncio.shield(making)

    async def _made(self, order: StepOrder) -> _OfRun:
        record = replace(await shared_record(self._runtime, order.run, self._node), consumed_s=order.consumed_s)
        plan = Plan.from_json(record.plan_json)
        try:
            workflow = load_workflow(record.workflow)
        except (TargetNotFound, TargetBroken) as error:
            raise _Refused(f"its workflow cannot be loaded there: {error}") from error
        code = (await asyncio.to_thread(since, plan, workflow)).digests
        run, calls = self._run_of(record, plan)
        return _OfRun(run, calls, steps_of(workflow), code)

    def _run_of(self, record: RunRecord, plan: Plan) -> tuple[Run, CallsOfSteps]:
        """What the code of steps uses of its run. Its journal serves and records nothing."""
        services = self._runtime.services()
        journal = Journal(
            services.store,
            record,
            ops=(),
            llm=(),
            flush=services.snapshots.flush,
            clock=services.clock,
            emit=lambda event: None,
        )
        recovery = _Fetching(record.id, services.snapshots, Pins(services.locks), lambda event: None)
        recovery.bucket = self._bucket
        worlds = WorldPool(services.backend, spec_of_run(record))
        worlds.recovery = recovery
        calls = CallsOfSteps(record, plan, journal, _no_model, services.clock)
        run = Run(
            record=record,
            plan=plan,
            journal=journal,
            snapshots=services.snapshots,
            worlds=worlds,
            calls=calls,
            clock=services.clock,
            root=Branch(ROOT, stand_in(record.base_snapshot, ""), CheckpointId("")),
            reuse=reuse_of(services, record, worlds.spec, journal),
            recovery=recovery,
        )
        return run, calls


async def shared_record(runtime: Runtime, run: RunId, node: str) -> RunRecord:
    """The row of a run of the fleet. Raises `NodeUnfit` if another database has the address here."""
    try:
        return await runtime.record(run)
    except RunNotFound as error:
        why = "this fleet's database has this address, but there it is another one: it has not the run"
        raise NodeUnfit(node, f"{runtime.store.address}: {why} {run}") from error


def _failed(making: asyncio.Task[_OfRun]) -> bool:
    return making.done() and (making.cancelled() or making.exception() is not None)


async def _seal(world: World | None) -> Snapshot:
    assert world is not None
    return await world.seal(flush=False)


async def _no_model() -> LLMClient:
    raise AssertionError("the process that works on the run makes the model calls")
