"""`@step` and `@workflow`: plain functions that the compiler can read and the runtime can replay."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from ramify.blocking_stream import Alone
from ramify.compiler.declarations import StepInfo, WorkflowInfo
from ramify.compiler.plan import Effect, OpKind
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.effects.fence import Compensate, InFork, Outside, Reconcile
from ramify.runtime.errors import NestedWorkflow, NotInARun, TargetNotFound
from ramify.runtime.execution.run import RunScope
from ramify.runtime.execution.step_call import StepDef, call_inline
from ramify.runtime.execution.steps import begin_step
from ramify.runtime.execution.streaming import Stream, outcome, streamed
from ramify.runtime.user_code.call_sites import CallSite, call_site
from ramify.runtime.user_code.sandbox import Sandbox, SyncSandbox, sandbox_parameter
from ramify.runtime.user_code.scope import current_scope, is_in_a_run
from ramify.runtime.user_code.worker_threads import await_on_loop, run_loop_of_thread, running_loop, start_on_run_loop
from ramify.runtime.user_code.workflow_loader import canonical_module, file_ref, load_target

if TYPE_CHECKING:
    from ramify.session import Runtime

P = ParamSpec("P")
R = TypeVar("R")
EffectName = Literal["pure", "readonly", "revertible", "irreversible"]
InForkName = Literal["refuse", "recorded", "leave"]


class Step(Generic[P, R]):
    """A function under `@step`: one operation on one world, journalled, retried and reused as declared."""

    def __init__(self, function: Callable[..., Any], definition: StepDef, declared: Effect | None) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.definition = definition
        self.__ramify_step__ = StepInfo(
            name=definition.name,
            module=canonical_module(function.__module__),
            effect=declared,
            takes_sandbox=definition.sandbox_parameter is not None,
            reuse=definition.reuse,
            in_fork=definition.outside.in_fork is not InFork.REFUSE,
            retried=definition.retry > 0,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Begin the step on the current branch. Raises `NotInARun` outside a workflow.

        To be awaited; in a function that is not async it waits, and gives the result itself.
        """
        return self.begin(call_site(), args, kwargs)

    def begin(self, site: CallSite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        """As a call of it at that place."""
        where = "" if is_in_a_run() else f" at {site.where}"
        scope = current_scope(f"step {self.definition.name!r} was called{where}")
        if not isinstance(scope, RunScope):
            raise NotInARun(
                f"step {self.definition.name!r} was called in a LangGraph node: call a plain function there"
            )

        def begun() -> Awaitable[R]:
            if scope.step is not None:
                return call_inline(self.definition, scope.sandbox, args, kwargs)
            return begin_step(
                scope, self.definition, scope.run.op(OpKind.RUN, site, self.definition.name), args, kwargs
            )

        return start_on_run_loop(f"step {self.definition.name!r} was called", begun)


@overload
def step(function: Callable[Concatenate[Sandbox, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(function: Callable[Concatenate[SyncSandbox, P], R], /) -> Step[P, R]: ...
@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(
    *,
    effect: EffectName | None = None,
    reuse: bool = False,
    retry: int = 0,
    timeout: Duration | None = None,
    name: str | None = None,
    idempotent: bool = False,
    reconcile: Reconcile | None = None,
    compensate: Compensate | None = None,
    in_fork: InForkName | None = None,
) -> Callable[[Callable[..., Any]], Step[..., Any]]: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: EffectName | None = None,
    reuse: bool = False,
    retry: int = 0,
    timeout: Duration | None = None,
    name: str | None = None,
    idempotent: bool = False,
    reconcile: Reconcile | None = None,
    compensate: Compensate | None = None,
    in_fork: InForkName | None = None,
) -> Any:
    """Make a function a step.

    A parameter annotated `Sandbox` (`SyncSandbox` in a function that is not async) gets the step's world; callers
    leave it out. `effect`: what it may do; without it, a step that takes a world is revertible, any other unknown.
    A "readonly" step gets a world of its own, a copy of its branch's that is dropped after it: such steps run beside
    each other and need no snapshot. So does one of which nothing is declared and whose own code writes to no file,
    where it may meet others (in `gather`, say); if code that it calls writes after all, it is run again in its turn.
    `reuse=True` declares it deterministic: equal code, arguments and world state, equal result. `retry`: how often
    it is run again from its entry state after it raised. `timeout`: of one attempt.

    The rest is for `effect="irreversible"`, of which an intent is durable before it starts. After a crash in between
    it is done again only where `idempotent=True` says that the receiver honours `ramify.idempotency_key()`; else
    `reconcile(key, **arguments)` is asked, which gives `Happened(result)` or `DidNotHappen()`; else the run stops
    with `EffectInDoubt` until `ramify approve`. `compensate(key, result, **arguments)` undoes it when the run is
    rolled back to before it, or its branch is released. `in_fork`: on a branch, or in a run forked from another,
    "refuse" it (the default), give what was "recorded" for the same arguments, or do it and "leave" it done. Each
    hook may be called more than once.
    """
    outside = Outside(idempotent, reconcile, compensate, InFork(in_fork or "refuse"))

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        if not inspect.isroutine(function):
            raise TypeError(f"{function!r} is no function: put @step on a `def` or an `async def`")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"step {function.__qualname__!r} is a generator: return its values")
        parameter = sandbox_parameter(function)
        declared = Effect(effect) if effect else None
        known = declared or (Effect.REVERTIBLE if parameter else Effect.UNKNOWN)
        if known is Effect.PURE and parameter is not None:
            raise TypeError(
                f"step {function.__qualname__!r} is declared pure but takes a Sandbox: drop one of the two"
            )
        if known is Effect.READONLY and parameter is None:
            raise TypeError(
                f"step {function.__qualname__!r} is declared readonly but takes no Sandbox: take one, or say pure"
            )
        if known is not Effect.IRREVERSIBLE and outside != Outside():
            raise TypeError(
                f"step {function.__qualname__!r}: idempotent, reconcile, compensate and in_fork are for "
                "effect='irreversible'"
            )
        if known is Effect.IRREVERSIBLE and reuse:
            raise TypeError(
                f"step {function.__qualname__!r} is irreversible and declared reuse=True: where its result is taken "
                "over it would not happen. Drop one of the two; in_fork='recorded' gives a branch what was done"
            )
        if retry < 0:
            raise ValueError(f"step {function.__qualname__!r}: retry={retry} is negative")
        limit = None if timeout is None else seconds(timeout)
        definition = StepDef(name or function.__qualname__, function, known, parameter, reuse, retry, limit, outside)
        return Step(function, definition, declared)

    return decorate if function is None else decorate(function)


class Workflow(Generic[P, R]):
    """A function under `@workflow`. `await workflow(...)` or `workflow.invoke(...)` runs it."""

    def __init__(self, function: Callable[P, Any], workspace: Path | None, deadline_s: float | None):
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.workspace = workspace
        self.deadline_s = deadline_s
        ref = file_ref(function) or f"{function.__module__}:{function.__qualname__}"
        self.__ramify_workflow__ = WorkflowInfo(name=function.__qualname__, ref=ref, deadline_s=deadline_s)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run under the ambient `Runtime`, or under one with the defaults that is opened for this call.

        Called by a workflow it is a part of that one's run: on its branch, within its deadline, in its journal; a
        deadline of its own counts where it is run by itself. Raises `NestedWorkflow` where it is called in a step or
        a LangGraph node, or was declared for another workspace.

        To be awaited. In a workflow that is not async it waits, and gives the result itself; so does one that is not
        async itself, called where no event loop runs.
        """
        result: Coroutine[Any, Any, R]
        if run_loop_of_thread():
            result = self._wait(args, kwargs)
        elif self._plain and not is_in_a_run() and running_loop() is None:
            result = _now(self._run(args, kwargs))
        else:
            result = self._run(args, kwargs)
        return result

    async def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], ambient: Runtime | None = None) -> R:
        from ramify.session import Runtime

        if is_in_a_run():
            self._check_nested()
            inner: R = await outcome(self.__wrapped__, args, kwargs)
            return inner
        if (under := ambient or Runtime.ambient()) is not None and under.loop is not None:
            under.check_open()
            result: R = await await_on_loop(under.loop, partial(under.start, self, args, kwargs))
            return result
        async with Runtime() as runtime:
            result = await runtime.start(self, args, kwargs)
            return result

    @property
    def _plain(self) -> bool:
        of = self.__wrapped__
        return not (inspect.iscoroutinefunction(of) or inspect.isasyncgenfunction(of))

    def _wait(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = self.__ramify_workflow__.name
        return start_on_run_loop(f"workflow {name!r} was called", lambda: self._run(args, kwargs))

    def _check_nested(self) -> None:
        name = self.__ramify_workflow__.name
        scope = current_scope(f"workflow {name!r} was called")
        if not isinstance(scope, RunScope):
            raise NestedWorkflow(f"workflow {name!r} was called in a LangGraph node: call it from a workflow")
        if scope.step is not None:
            raise NestedWorkflow(f"workflow {name!r} was called in step {scope.step.name!r}: call it from a workflow")
        theirs = scope.run.record.workspace
        if self.workspace is None or str(self.workspace.expanduser().resolve()) == theirs:
            return
        if self._is_declared_as(scope.run.record.workflow):
            return
        at = "" if self.workspace.is_absolute() else f" (here {self.workspace.resolve()})"
        raise NestedWorkflow(
            f"workflow {name!r} is declared for the workspace {self.workspace}{at}, and was called in a run on "
            f"{theirs or 'none'}: a run has one workspace; leave it out of the declaration, or run it by itself"
        )

    def _is_declared_as(self, ref: str) -> bool:
        """For the same workspace as the workflow at `ref`, whose run this is: one that is named relative to the
        current folder is the run's wherever the run is resumed."""
        try:
            return bool(load_target(ref).workspace == self.workspace)
        except TargetNotFound:  # of a notebook, or of a function
            return False

    def invoke(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same, blocking. Not from inside a running event loop."""
        if run_loop_of_thread():
            inner: R = self._wait(args, kwargs)
            return inner
        return asyncio.run(self._run(args, kwargs))


class StreamingWorkflow(Workflow[P, list[R]], Generic[P, R]):
    """A generator under `@workflow`. `await workflow(...)` gives all that it yields, as a list."""

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        """`async for item in workflow.stream(...)`: each item when it is yielded; raises as a call of it does. In
        code that is not async: `for item in ...`. Raises `WouldBlock` for that where an event loop runs.

        The run is at most one item ahead of its reader. One that is left early (close the stream:
        `contextlib.aclosing`) is cancelled, and `ramify resume` goes on with it. Called by a workflow, it is a part
        of that one's run.
        """
        from ramify.session import Runtime

        apart = run_loop_of_thread() is not None or not inspect.isasyncgenfunction(self.__wrapped__)
        ambient = Runtime.ambient() if running_loop() is None else None  # it is not waited for on its own loop
        return Stream(self._items(args, kwargs, apart, ambient), Alone)

    async def _items(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], apart: bool, ambient: Runtime | None
    ) -> AsyncGenerator[R, None]:
        if not is_in_a_run():
            items = streamed(lambda: self._run(args, kwargs, ambient))
        else:
            self._check_nested()
            if apart:
                items = streamed(lambda: outcome(self.__wrapped__, args, kwargs), in_turn=True)
            else:
                items = self.__wrapped__(*args, **kwargs)
        async with aclosing(items):
            async for item in items:
                yield item


def _now(made: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(made)


def steps_of(workflow: Workflow[..., Any]) -> dict[str, StepDef]:
    """The steps that the workflow's module knows, by name."""
    known = workflow.__wrapped__.__globals__.values()
    return {value.definition.name: value.definition for value in known if isinstance(value, Step)}


class _Making(Protocol):
    """`@workflow(...)` with what it declares."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncGenerator[R, None]], /) -> StreamingWorkflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Generator[R, None, None]], /) -> StreamingWorkflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(function: Callable[P, AsyncGenerator[R, None]], /) -> StreamingWorkflow[P, R]: ...
@overload
def workflow(function: Callable[P, Generator[R, None, None]], /) -> StreamingWorkflow[P, R]: ...
@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(*, workspace: str | Path | None = None, deadline: Duration | None = None) -> _Making: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    workspace: str | Path | None = None,
    deadline: Duration | None = None,
) -> Any:
    """Make a function a workflow; a generator becomes one that streams what it yields.

    One that is not async runs in a thread of its own. Whatever is awaited in an async one (steps, `branches.map`,
    `adopt`, `llm`, `interrupt`, other workflows) waits there by itself and gives its result; `async with` is `with`.

    `workspace`: the folder that its worlds start from (never written to). `deadline`: the whole run's, which every
    model call carries on. Both can be given, or given anew, when it is run.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        if not inspect.isfunction(function):
            raise TypeError(f"{function!r} is no function: put @workflow on a `def` or an `async def`")
        streams = inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
        return (StreamingWorkflow if streams else Workflow)(
            function,
            None if workspace is None else Path(workspace),
            None if deadline is None else seconds(deadline),
        )

    return decorate if function is None else decorate(function)
