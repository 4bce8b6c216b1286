"""`Runtime`: the home, the sandboxes and the model that runs share. It starts, resumes and forks runs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from ramify import paths
from ramify.code_changes import Changes, CodeDiff, preview, standing
from ramify.compiler.plan import OpKind, Plan
from ramify.decorators import Workflow, load_workflow, steps_of
from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import MergeStrategy, Resolver
from ramify.new_runs import RunForks, launch_of
from ramify.open_bucket import OpenBucket
from ramify.recorded_runs import NO_ANSWER, RecordedRuns, given_answers
from ramify.resources import (
    BackendChoice,
    ChosenSettings,
    Resources,
    check_arguments,
    checked_share,
    environment,
    reuse_check_share,
)
from ramify.runtime.codec import codec
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.effects import ledger
from ramify.runtime.errors import (
    RunError,
    RuntimeClosed,
    StoreError,
    UsedAfterFork,
)
from ramify.runtime.estimates.recorded_runs import RecentRuns
from ramify.runtime.events import Event, Noticed, Observer
from ramify.runtime.execution import driver
from ramify.runtime.execution.fork_arguments import strategy_of
from ramify.runtime.execution.new_runs import Launch, Services
from ramify.runtime.execution.new_runs import create as create_run
from ramify.runtime.execution.placed_steps import Places
from ramify.runtime.records import (
    CheckpointId,
    RunId,
    RunRecord,
    RunStatus,
    Settings,
)
from ramify.runtime.store import RunStore
from ramify.runtime.worlds.recovery import Fetch
from ramify.sandboxes.contract import Backend
from ramify.serving.client import LLMClient

if TYPE_CHECKING:
    from ramify.fleet.fleet import Fleet

_ambient: ContextVar[Runtime | None] = ContextVar("ramify_runtime", default=None)


_STILL_USED = "their recorded results are still used, unless their parameters are in another order"


class Runtime(RecordedRuns):
    """Everything that runs need, opened when the first run needs it.

    - `home`: where state is stored (see `ramify.paths.home`).
    - `database`: another database than the one in the home.
    - `sandbox`: "namespaces" (the default), "docker", "copy" (no isolation), or a backend of your own.
    - `base_url`: any OpenAI-compatible server; without it the embedded model is started. A user and a password in the
      URL are not stored: to resume elsewhere, name the whole address again.
    - `model`, `api_key`: for that server.
    - `llm`: a client of your own. Its address and model are stored with its runs, without secrets, so that a resume
      without the client asks the same server. `base_url` and `model` beside it only tell its answers from those of
      other models, where results are reused.
    - `observer`: called with every event of every run.
    - `check_reuse`: the share, from 0 to 1, of reused results that are computed again and compared; `WrongReuse` if
      they differ.
    - `reuse_answers`: reuse answers for equal model calls whatever their temperature and seed; by default only at
      temperature 0 with a seed that the server is known to honour.
    - `remote`: a bucket (docs/how-to/fleet.md). Each state of a run is uploaded after it is sealed, while the run
      goes on, and a state that this machine lacks is fetched. Closing waits for the uploads, and raises `RemoteError`
      if one failed.
    - `fleet`: a Ray cluster, "auto", HOST:PORT of its head or ray://HOST:10001, whose nodes run steps of a fork's
      branches (docs/how-to/ray.md); `Runtime.fleet` is its `Fleet`. It needs `remote`.

    $RAMIFY_SANDBOX, $RAMIFY_BASE_URL, $RAMIFY_API_KEY and $RAMIFY_CHECK_REUSE are the defaults of these arguments.
    $RAMIFY_OTEL=1 traces every run (see `ramify.telemetry`).
    """

    def __init__(
        self,
        *,
        home: str | Path | None = None,
        database: str | Path | None = None,
        sandbox: str | BackendChoice | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        llm: LLMClient | None = None,
        observer: Observer | None = None,
        check_reuse: float | None = None,
        reuse_answers: bool = False,
        remote: str | Path | None = None,
        fleet: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_arguments(
            texts={"base_url": base_url, "api_key": api_key, "model": model, "fleet": fleet},
            places={"home": home, "database": database, "remote": remote},
            calls={"observer": observer, "clock": clock},
            switches={"reuse_answers": reuse_answers},
        )
        if llm is not None and api_key is not None:
            raise RunError("api_key= is for the server at base_url=, and the client llm= has its own: leave one out")
        self.home = paths.home(home)
        self.database = paths.database(self.home, database)
        self.last_run_id: RunId | None = None
        self._recent = RecentRuns()
        env_sandbox, env_url, env_key = environment(os.environ)
        given = None if sandbox is None or isinstance(sandbox, str) else sandbox
        name = sandbox if isinstance(sandbox, str) else getattr(given, "name", "custom") if given else env_sandbox
        self._chosen = ChosenSettings.of(name, base_url, env_url, model, llm)
        self._resources = Resources(
            self.home,
            backend=given,
            llm=llm,
            address=base_url or env_url,
            api_key=api_key or env_key,
            private=paths.private(self.home, self.database),
        )
        self._observers = [] if observer is None else [observer]
        self._observer = observer
        if os.environ.get("RAMIFY_OTEL", "0") not in ("", "0"):
            self._observers.append(_traces())
        self.reuse_answers, self._bucket = reuse_answers, remote
        if check_reuse is not None:
            checked_share("check_reuse", check_reuse, check_reuse)
        self.check_reuse = reuse_check_share(os.environ) if check_reuse is None else check_reuse
        self._clock = clock
        self._stack = AsyncExitStack()
        self._entered = self._closed = False
        self._owner = os.getpid()  # the process that opened this runtime
        self.fleet: Fleet | None = None
        self._cluster = fleet
        self._places: Callable[[RunRecord], Places | None] | None = None
        self._token: Token[Runtime | None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # the event loop that opened this runtime

    @staticmethod
    def ambient() -> Runtime | None:
        """The runtime whose `async with` block the calling code is in, if any."""
        return _ambient.get()

    async def __aenter__(self) -> Runtime:
        if self._entered:
            raise RunError("a Runtime is opened only once: create another one")
        if self._chosen.sandbox is not None:  # otherwise it is known when a run is resumed
            self._resources.require_backend(self._chosen.sandbox)
        self._entered = True
        async with AsyncExitStack() as stack:
            try:
                paths.make_private(self.home)
                self.snapshots = await asyncio.to_thread(SnapshotStore, paths.snapshots(self.home))
            except OSError as error:
                raise StoreError(
                    f"the home {self.home} cannot be used: {error.filename}: {error.strerror}. "
                    "Name another one: --home DIR or $RAMIFY_HOME"
                ) from error
            self.store = await stack.enter_async_context(RunStore(self.database, clock=self._clock))
            if self._bucket is not None:
                opening = OpenBucket(self.home, self.snapshots, self._bucket)
                self._resources.bucket = bucket = await stack.enter_async_context(opening)
                self._observers.append(bucket.observe)
            stack.push_async_callback(self._resources.close)
            self._stack = stack.pop_all()
        self._token, self.loop = _ambient.set(self), asyncio.get_running_loop()
        self._owner = os.getpid()
        if self._cluster is not None:
            await self._open_fleet(self._cluster)
        return self

    async def _open_fleet(self, cluster: str) -> None:
        from ramify.fleet.fleet import Fleet

        try:
            self.fleet = await self._stack.enter_async_context(Fleet(self, cluster))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            return  # the copy in a forked child: its parent closes it
        self._closed = True
        await self._stack.aclose()
        if _ambient.get() is self and self._token is not None:
            _ambient.reset(self._token)

    def check_open(self) -> None:
        """Raises an error unless the runtime can be used.

        `UsedAfterFork` in a process that was forked from the one that opened it; `RuntimeClosed` if it was closed, or
        if its event loop has ended; `RunError` if it was never opened.
        """
        if self.loop is None:
            raise RunError("open the Runtime before you use it: `async with Runtime() as runtime`")
        refuse_in_child(self._owner, "the Runtime", UsedAfterFork)
        if self._closed or self.loop.is_closed():
            why = "was closed" if self._closed else "cannot be used: the event loop that opened it has ended"
            raise RuntimeClosed(
                f"the Runtime for {self.home} {why}. Open a new one: `async with Runtime() as runtime`"
            )

    def _check_here(self) -> None:
        """As `check_open`; also raises `RunError` on another event loop than the runtime's own."""
        self.check_open()
        if asyncio.get_running_loop() is not self.loop:
            raise RunError(
                f"the Runtime for {self.home} was opened on another event loop and works only there: open a Runtime "
                "on this loop, or call the workflow itself (`await workflow(...)`), which runs on the Runtime's loop"
            )

    async def run(
        self,
        workflow: Workflow[..., Any],
        *args: Any,
        workspace: str | Path | None = None,
        deadline: Duration | None = None,
        plan: Plan | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a workflow to its end and return its result.

        `plan`: run under this plan. By default the workflow is compiled as it is now, with the durations of its last
        finished runs, as of a second ago, if there are three. Raises `RunFailed` (`StepFailed` if a step raised); the
        run is stored and can be resumed.
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
        """As `run`, for a workflow whose parameters have the same names as those of `run`."""
        launch, code = await self._launch(workflow, args, kwargs, workspace, deadline, plan)
        self._warm(launch.plan, self._chosen.new)
        services = self._services(self._chosen.new)
        return await driver.start(services, launch, workflow.__wrapped__, created=self._created, code=code)

    def _created(self, run: RunId) -> None:
        self.last_run_id = run

    async def create(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        *,
        workspace: str | Path | None = None,
        deadline: Duration | None = None,
        plan: Plan | None = None,
    ) -> RunRecord:
        """Store a new run with its workspace, and do not start it: `resume`, in any process, runs it. Returns its
        row."""
        launch, _ = await self._launch(workflow, args, kwargs, workspace, deadline, plan)
        record, skipped = await create_run(self._services(self._chosen.new), launch)
        self._created(record.id)
        for one in skipped:
            self._emit(Noticed(record.id, f"left out of the snapshot: {one.path} ({one.reason})"))
        return record

    async def _launch(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        workspace: str | Path | None,
        deadline: Duration | None,
        plan: Plan | None,
    ) -> tuple[Launch, dict[str, str]]:
        self._check_here()
        return await launch_of(
            self.store, self._recent, workflow, args, kwargs, workspace=workspace, deadline=deadline, plan=plan
        )

    async def resume(
        self,
        run_id: str,
        *,
        deadline: Duration | None = None,
        back_to: str | None = None,
        answer: Any = NO_ANSWER,
        answers: Mapping[str, Any] = MappingProxyType({}),
        accept_changes: bool = False,
    ) -> Any:
        """Continue a run where its journal ends, and return its result; of a finished run, return the result again.

        `answer`: to the one open question; raises `SeveralQuestions` if there are more. `answers`: by the id of the
        question (`RunWaiting.questions`, `questions()`). Answers are stored before the run continues; raises
        `AlreadyAnswered` if another person was first. `back_to`: the id of a checkpoint of the root branch, to go
        back to first; later effects are compensated if their steps say how. `deadline`: a new one, counted from now.

        The run continues in the sandbox and with the model that it was started with, unless this runtime names
        others. Raises `WorkflowChanged` if the code is not the code that the plan was compiled from.
        `accept_changes`: continue with changed code if each recorded result certainly belongs to a call of it, or its
        step may safely run again (see `changes_of_code`).
        """
        self._check_here()
        record = await self.store.run(RunId(run_id))
        self.last_run_id = record.id
        workflow = load_workflow(record.workflow)
        given = given_answers(answer, answers)
        if record.status is RunStatus.DONE and back_to is None:
            await self.store_answers_of(record, given, "Runtime.resume")
            return codec.decode(record.result_json or "null")
        stored = record.plan_json
        stands = standing(record, workflow, accept=accept_changes)
        if stands.adopt is None:
            self._report_changed_steps(record, stands.found)
            if not stands.is_stored:
                record = replace(record, plan_json=stands.plan.to_json())
        else:  # checked again under the run's lock; here before anything is undone
            held = await self.store.ops(record.id), await self.store.llm(record.id)
            stands.adopt(*held, await self.store.effects(record.id))
        settings = self._chosen.to_resume(record.settings)
        if back_to is not None:
            checkpoint = await self.store.checkpoint(CheckpointId(back_to))
            await ledger.go_back(self._services(settings), record, checkpoint, steps_of(workflow))
            record = replace(await self.store.run(record.id), plan_json=record.plan_json)
        await ledger.undo(self._services(settings), record, steps_of(workflow))
        await self.store_answers_of(record, given, "Runtime.resume")
        self._warm(stands.plan, settings)
        new_deadline_s = None if deadline is None else seconds(deadline)
        return await driver.drive(
            self._services(settings),
            record,
            workflow.__wrapped__,
            new_deadline_s=new_deadline_s,
            plan=stands.plan,
            code=stands.digests,
            adopt=stands.adopt,
            amended=None if stands.amended is None else (stored, stands.amended.to_json()),
        )

    def _report_changed_steps(self, record: RunRecord, found: CodeDiff) -> None:
        if found.steps:
            why = f" ({', '.join(found.parts)})" if found.parts else ""
            what = f"changed since the run started: {', '.join(found.steps)}{why}"
            self._emit(Noticed(record.id, f"{what}; {_STILL_USED}"))

    async def changes_of_code(self, run_id: str) -> Changes:
        """What `resume(..., accept_changes=True)` would do with a run's recorded results. Changes nothing."""
        record = await self.store.run(RunId(run_id))
        ops, llm = await self.store.ops(record.id), await self.store.llm(record.id)
        return preview(record, load_workflow(record.workflow), ops, llm, await self.store.effects(record.id))

    async def fork(self, checkpoint_id: str, *, files: str | Path | None = None, for_real: bool = False) -> RunRecord:
        """Create a run that starts at a checkpoint of another; `resume` continues it. Returns its record.

        `files`: a folder whose files replace the checkpoint's, such as an edited `ramify checkout`; environment,
        shells and the rest stay. `for_real`: its irreversible steps have their effects as in any run; otherwise they
        are restricted as on a branch of a fork. A LangGraph thread is forked with its run if its saver stores it in
        this database (`ramify.graph.saver`); otherwise raises `ThreadElsewhere`, and `NoStateThere` inside a
        superstep. If the checkpoint's state is lost, a resume runs again the steps that made it; the observer is
        told.
        """
        self._check_here()
        fork, lost = await self._forks().fork(checkpoint_id, None if files is None else Path(files), for_real)
        if lost is not None:
            self._emit(Noticed(fork.id, f"{lost}; a resume runs again the steps that made it, where they allow it"))
        return fork

    async def merge(
        self,
        ours: str,
        theirs: str,
        *,
        base: str | None = None,
        strategy: MergeStrategy | Resolver = MergeStrategy.FAIL,
        for_real: bool = False,
    ) -> RunRecord:
        """Fork a run at its checkpoint `ours`, with the changes of the checkpoint `theirs` merged into its world.

        `base`: the snapshot that both sides changed; by default their latest common ancestor. `strategy` resolves
        conflicts. Raises `MergeConflict` with all that are left, and `RunError` if there is no common ancestor.
        """
        self._check_here()
        return await self._forks().merge(ours, theirs, base, strategy_of(strategy), for_real)

    def _forks(self) -> RunForks:
        return RunForks(self.home, self.database, self.store, self.snapshots, self._clock)

    @property
    def bucket(self) -> OpenBucket | None:
        """The bucket of `remote`, while the runtime is open."""
        return self._resources.bucket

    @property
    def sandbox(self) -> str:
        """The name of the sandbox backend of new runs."""
        return self._chosen.new.sandbox

    def sandbox_of(self, record: RunRecord) -> str:
        """The name of the sandbox backend with which `resume` would continue a run."""
        return self._chosen.to_resume(record.settings).sandbox

    def services(self) -> Services:
        """What a run is made of, for a front end that starts its own runs. Valid while the runtime is open."""
        return self._services(self._chosen.new)

    def _services(self, settings: Settings) -> Services:
        async def backend() -> Backend:
            return await self._resources.backend(settings.sandbox, self.snapshots)

        async def llm() -> LLMClient:
            return await self._resources.llm(settings)

        return Services(
            store=self.store,
            snapshots=self.snapshots,
            backend=backend,
            llm=llm,
            locks=paths.locks(self.home),
            clock=self._clock,
            emit=self._emit,
            settings=settings,
            check_reuse=self.check_reuse,
            reuse_answers=self.reuse_answers,
            fetch=self._fetch(),
            places=self._places,
        )

    @contextmanager
    def placing(self, places: Callable[[RunRecord], Places | None]) -> Iterator[None]:
        """Runs that start in this block have the steps of their branches placed by a fleet."""
        before, self._places = self._places, places
        try:
            yield
        finally:
            self._places = before

    def _fetch(self) -> Fetch | None:
        return self._resources.fetch(self.snapshots)

    def tell(self, event: Event) -> None:
        """Call the observer with an event of a run that another process works on."""
        if self._observer is not None:
            self._observer(event)

    def _emit(self, event: Event) -> None:
        for observer in self._observers:
            observer(event)

    def _warm(self, plan: Plan, settings: Settings) -> None:
        """If the plan calls a model, start it while the workspace is being imported."""
        if any(op.kind is OpKind.CALL_LLM for op in plan.ops):
            self._resources.warm(settings)


@cache
def _traces() -> Observer:
    from ramify.telemetry import Traces

    return Traces()
