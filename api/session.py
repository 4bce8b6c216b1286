"""`Runtime`: the home, the sandboxes and the model that runs share; where runs are started and resumed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar, Token
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from ramify import paths
from ramify.compiler.plan import OpKind, Plan
from ramify.decorators import Workflow
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime import codec, driver
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.errors import BadArguments, PlanMismatch, WorkflowChanged
from ramify.runtime.events import Event, Observer
from ramify.runtime.loading import load_target
from ramify.runtime.records import LLMRecord, OpRecord, RunId, RunRecord, RunStatus, Settings
from ramify.runtime.store import RunStore
from ramify.sandboxes.contract import Backend
from ramify.sandboxes.select import open_backend
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
        sandbox: str | Backend | Callable[[SnapshotStore, Path], Backend] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        llm: LLMClient | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.home = paths.home(home)
        self.last_run_id: RunId | None = None
        self._sandbox = sandbox or os.environ.get("RAMIFY_SANDBOX") or "namespaces"
        name = self._sandbox if isinstance(self._sandbox, str) else getattr(self._sandbox, "name", "custom")
        url = base_url or os.environ.get("RAMIFY_BASE_URL") or None
        self._settings = Settings(sandbox=name, base_url=url, model=model)
        self._api_key = api_key or os.environ.get("RAMIFY_API_KEY") or None
        self._given_llm = llm
        self._observer = observer
        self._clock = clock
        self._stack = AsyncExitStack()
        self._llm: asyncio.Task[LLMClient] | None = None
        self._backends: dict[str, Backend] = {}
        self._backend_lock = asyncio.Lock()
        self._token: Token[Runtime | None] | None = None

    @staticmethod
    def ambient() -> Runtime | None:
        """The runtime that the running code stands in, if any."""
        return _ambient.get()

    async def __aenter__(self) -> Runtime:
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.store = await self._stack.enter_async_context(RunStore(paths.database(self.home), clock=self._clock))
        self.snapshots = await asyncio.to_thread(SnapshotStore, paths.snapshots(self.home))
        self._token = _ambient.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _ambient.reset(self._token)
        if self._llm is not None:
            self._llm.cancel()
            await asyncio.gather(self._llm, return_exceptions=True)  # whoever called the model has seen its error
        await self._stack.__aexit__(kind, error, trace)

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
        if plan is None:
            plan = compile_plan(workflow)
        elif plan.name != workflow.__ramify_workflow__.name:
            raise PlanMismatch(f"the plan is for {plan.name!r}, not for {workflow.__ramify_workflow__.name!r}")
        folder = workspace if workspace is not None else workflow.workspace
        limit = seconds(deadline) if deadline is not None else (workflow.deadline_s or plan.deadline_s)
        services = self._services(self._settings)
        launch = driver.Launch(plan, args, dict(kwargs), None if folder is None else Path(folder), limit)
        record, skipped = await driver.create(services, launch)
        self.last_run_id = record.id
        self._warm(plan)
        return await driver.drive(services, record, workflow.__wrapped__, skipped=skipped)

    async def resume(self, run_id: str) -> Any:
        """Go on with a run where its journal ends; the result again where it is done.

        Raises `WorkflowChanged` where the code is no longer what the run's plan was compiled from.
        """
        record = await self.store.run(RunId(run_id))
        self.last_run_id = record.id
        workflow = load_target(record.workflow)
        if record.status is RunStatus.DONE:
            return codec.decode(record.result_json or "null")
        plan = Plan.from_json(record.plan_json)
        now = compile_plan(workflow)
        if now.code_digest != plan.code_digest:
            raise WorkflowChanged(
                f"{record.workflow} has changed since run {record.id} began, so its journal no longer fits. "
                "Bring the code back as it was, or start anew with `ramify run`"
            )
        chosen = record.settings
        if self._settings.base_url or self._settings.model:
            chosen = replace(chosen, base_url=self._settings.base_url, model=self._settings.model)
        self._settings = chosen
        self._warm(plan)
        return await driver.drive(self._services(chosen), record, workflow.__wrapped__)

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
            return await self._open_backend(settings.sandbox)

        return driver.Services(
            store=self.store,
            snapshots=self.snapshots,
            backend=backend,
            llm=self._open_llm,
            locks=paths.locks(self.home),
            clock=self._clock,
            emit=self._emit,
            settings=settings,
        )

    def _emit(self, event: Event) -> None:
        if self._observer is not None:
            self._observer(event)

    async def _open_backend(self, name: str) -> Backend:
        async with self._backend_lock:
            if name not in self._backends:
                scratch = paths.worlds(self.home)
                made: Backend
                if isinstance(self._sandbox, str):
                    made = await asyncio.to_thread(open_backend, name, self.snapshots, scratch)
                elif callable(self._sandbox):
                    made = self._sandbox(self.snapshots, scratch)
                else:
                    made = self._sandbox
                self._backends[name] = await self._stack.enter_async_context(made)
            return self._backends[name]

    def _warm(self, plan: Plan) -> None:
        """The plan says that the model will be called: start it while the workspace is worked on."""
        if self._llm is None and any(op.kind is OpKind.CALL_LLM for op in plan.ops):
            self._llm = asyncio.get_running_loop().create_task(self._start_llm())

    async def _open_llm(self) -> LLMClient:
        if self._llm is None or (self._llm.done() and self._llm.exception() is not None):
            self._llm = asyncio.get_running_loop().create_task(self._start_llm())
        return await asyncio.shield(self._llm)

    async def _start_llm(self) -> LLMClient:
        if self._given_llm is not None:
            return self._given_llm
        from ramify.serving.gateway.server import LocalGateway

        upstream = self._settings.base_url
        gateway = LocalGateway(
            home=self.home, upstream=upstream, upstream_key=self._api_key, model=self._settings.model
        )
        await self._stack.enter_async_context(gateway)
        client = LLMClient(gateway.base_url, model=self._settings.model)
        return await self._stack.enter_async_context(client)


def compile_plan(workflow: Workflow[..., Any]) -> Plan:
    """The plan of a workflow as its code stands now. Imports the compiler."""
    from ramify.compiler.pipeline import compile_workflow

    info = workflow.__ramify_workflow__
    return compile_workflow(workflow, ref=info.ref, deadline_s=info.deadline_s).plan
