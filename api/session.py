"""`Runtime`: the home, the sandboxes and the model that runs share; where runs are started and resumed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar, Token
from inspect import signature
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from ramify import paths
from ramify.compiler.plan import OpKind, Plan
from ramify.decorators import Workflow
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Change, Snapshot
from ramify.resources import GivenBackend, Resources, environment
from ramify.runtime import codec, driver
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.errors import BadArguments, PlanMismatch, RunError, StoreError, WorkflowChanged
from ramify.runtime.events import Event, Observer
from ramify.runtime.loading import load_target
from ramify.runtime.records import ROOT, LLMRecord, OpRecord, RunId, RunRecord, RunStatus, Settings
from ramify.runtime.store import RunStore
from ramify.sandboxes.contract import Backend
from ramify.serving.client import LLMClient

_ambient: ContextVar[Runtime | None] = ContextVar("ramify_runtime", default=None)


class Runtime:
    """Everything that runs need, opened when the first of them needs it.

    `home`: where state is kept (see `ramify.paths.home`). `sandbox`: "namespaces" (the default), "copy" (no
    isolation), or a backend of your own. `base_url`: any OpenAI-compatible server; without it the embedded model is
    started. `llm`: a client of your own, used as it is. `observer`: hears every event of every run.
    $RAMIFY_SANDBOX, $RAMIFY_BASE_URL and $RAMIFY_API_KEY stand in for what is not given.
    """

    def __init__(
        self,
        *,
        home: Path | None = None,
        sandbox: str | GivenBackend | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        llm: LLMClient | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.home = paths.home(home)
        self.last_run_id: RunId | None = None
        env_sandbox, env_url, env_key = environment(os.environ)
        given = None if sandbox is None or isinstance(sandbox, str) else sandbox
        name = sandbox if isinstance(sandbox, str) else getattr(given, "name", "custom") if given else env_sandbox
        self._chosen_sandbox = name  # None: nobody chose
        self._settings = Settings(sandbox=name or "namespaces", base_url=base_url or env_url, model=model)
        self._resources = Resources(self.home, backend=given, llm=llm, api_key=api_key or env_key)
        self._observer = observer
        self._clock = clock
        self._stack = AsyncExitStack()
        self._entered = False
        self._token: Token[Runtime | None] | None = None

    @staticmethod
    def ambient() -> Runtime | None:
        """The runtime that the running code stands in, if any."""
        return _ambient.get()

    async def __aenter__(self) -> Runtime:
        if self._entered:
            raise RunError("a Runtime is opened once: make another one")
        self._entered = True
        async with AsyncExitStack() as stack:
            try:
                self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
                self.snapshots = await asyncio.to_thread(SnapshotStore, paths.snapshots(self.home))
            except OSError as error:
                raise StoreError(
                    f"the home {self.home} cannot be used: {error}. Name another one: --home DIR or $RAMIFY_HOME"
                ) from error
            self.store = await stack.enter_async_context(RunStore(paths.database(self.home), clock=self._clock))
            stack.push_async_callback(self._resources.close)
            self._stack = stack.pop_all()
        self._token = _ambient.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if _ambient.get() is self and self._token is not None:
            _ambient.reset(self._token)

    async def run(
        self,
        workflow: Workflow[..., Any],
        *args: Any,
        workspace: str | Path | None = None,
        deadline: Duration | None = None,
        plan: Plan | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a workflow to its end. `plan`: run under this one; otherwise it is compiled now.

        Raises `RunFailed` (`StepFailed` where a step raised); the run is kept and can be resumed.
        """
        return await self.start(workflow, args, kwargs, workspace=workspace, deadline=deadline, plan=plan)

    async def start(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        *,
        workspace: str | Path | None = None,
        deadline: Duration | None = None,
        plan: Plan | None = None,
    ) -> Any:
        """As `run`, for a workflow whose own parameters have names that `run` takes."""
        try:
            signature(workflow.__wrapped__).bind(*args, **kwargs)
        except TypeError as error:
            raise BadArguments(
                f"{workflow.__ramify_workflow__.name}{signature(workflow.__wrapped__)}: {error}"
            ) from None
        # a plan made by hand is checked as one from a file is
        plan = compile_plan(workflow) if plan is None else Plan.from_json(plan.to_json())
        if plan.name != workflow.__ramify_workflow__.name:
            raise PlanMismatch(f"the plan is for {plan.name!r}, not for {workflow.__ramify_workflow__.name!r}")
        folder = workspace if workspace is not None else workflow.workspace
        limit = seconds(deadline) if deadline is not None else (workflow.deadline_s or plan.deadline_s)
        services = self._services(self._settings)
        launch = driver.Launch(plan, args, dict(kwargs), None if folder is None else Path(folder), limit)
        record, skipped = await driver.create(services, launch)
        self.last_run_id = record.id
        self._warm(plan, self._settings)
        return await driver.drive(services, record, workflow.__wrapped__, skipped=skipped)

    async def resume(self, run_id: str, *, deadline: Duration | None = None) -> Any:
        """Go on with a run where its journal ends; the result again where it is done.

        `deadline`: a new one, counted from now. The run goes on in the sandbox and with the model that it began
        with, unless this runtime was told otherwise. Raises `WorkflowChanged` where the code is no longer what the
        run's plan was compiled from.
        """
        record = await self.store.run(RunId(run_id))
        self.last_run_id = record.id
        workflow = load_target(record.workflow)
        if record.status is RunStatus.DONE:
            return codec.decode(record.result_json or "null")
        plan = Plan.from_json(record.plan_json)
        if compile_plan(workflow).code_digest != plan.code_digest:
            raise WorkflowChanged(
                f"{record.workflow} has changed since run {record.id} began, so its journal no longer fits. "
                "Bring the code back as it was, or start anew with `ramify run`"
            )
        settings = Settings(
            sandbox=self._chosen_sandbox or record.settings.sandbox,
            base_url=self._settings.base_url or record.settings.base_url,
            model=self._settings.model or record.settings.model,
        )
        self._warm(plan, settings)
        more_s = None if deadline is None else seconds(deadline)
        return await driver.drive(self._services(settings), record, workflow.__wrapped__, more_s=more_s)

    async def changes(self, run_id: str | None = None) -> list[Change]:
        """What a run (the last one) changed so far, from its workspace to the last state of its root branch."""
        before, after = await self._ends(run_id)
        return await asyncio.to_thread(self.snapshots.changes, before, after)

    async def apply(self, run_id: str | None = None) -> list[Change]:
        """Write that into the run's workspace. Raises `CheckoutRefused` where that has changed meanwhile."""
        before, after = await self._ends(run_id)
        folder = Path((await self.record(run_id)).workspace)
        return await asyncio.to_thread(self.snapshots.checkout, after, folder, only_changes_from=before)

    async def _ends(self, run_id: str | None) -> tuple[Snapshot, Snapshot]:
        run = await self.record(run_id)
        checkpoints = await self.store.checkpoints(run.id)
        last = max((one for one in checkpoints if one.branch == ROOT), key=lambda one: one.seq)
        return self.snapshots.get(run.base_snapshot), self.snapshots.get(last.snapshot_id)

    async def journal(self, run_id: str | None = None) -> list[OpRecord]:
        """The journal of a run (the last one), in order."""
        return await self.store.ops(RunId(run_id or self._last()))

    async def llm_calls(self, run_id: str | None = None) -> list[LLMRecord]:
        """The model calls of a run (the last one), in order."""
        return await self.store.llm(RunId(run_id or self._last()))

    async def record(self, run_id: str | None = None) -> RunRecord:
        """The row of a run (the last one)."""
        return await self.store.run(RunId(run_id or self._last()))

    def _last(self) -> str:
        if self.last_run_id is None:
            raise ValueError("no run has been started by this runtime: name one")
        return self.last_run_id

    def services(self) -> driver.Services:
        """What runs are made of, for a front end that starts its own. Valid while the runtime is open."""
        return self._services(self._settings)

    def _services(self, settings: Settings) -> driver.Services:
        async def backend() -> Backend:
            return await self._resources.backend(settings.sandbox, self.snapshots)

        async def llm() -> LLMClient:
            return await self._resources.llm(settings)

        return driver.Services(
            store=self.store,
            snapshots=self.snapshots,
            backend=backend,
            llm=llm,
            locks=paths.locks(self.home),
            clock=self._clock,
            emit=self._emit,
            settings=settings,
        )

    def _emit(self, event: Event) -> None:
        if self._observer is not None:
            self._observer(event)

    def _warm(self, plan: Plan, settings: Settings) -> None:
        """The plan says that the model will be called: start it while the workspace is worked on."""
        if any(op.kind is OpKind.CALL_LLM for op in plan.ops):
            self._resources.warm(settings)


def compile_plan(workflow: Workflow[..., Any]) -> Plan:
    """The plan of a workflow as its code stands now. Imports the compiler."""
    from ramify.compiler.pipeline import compile_workflow

    info = workflow.__ramify_workflow__
    return compile_workflow(workflow, ref=info.ref, deadline_s=info.deadline_s).plan
