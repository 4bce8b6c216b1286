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

from ramify import paths
from ramify.compiler.declarations import StepInfo, WorkflowInfo
from ramify.compiler.plan import Effect, OpKind
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.effects.fence import Compensate, InFork, Outside, Reconcile
from ramify.runtime.errors import NestedWorkflow, NotInARun, TargetBroken, TargetNotFound
from ramify.runtime.execution.run import RunScope
from ramify.runtime.execution.step_call import StepDef, call_inline
from ramify.runtime.execution.steps import begin_step
from ramify.runtime.execution.streaming import Stream, outcome, streamed
from ramify.runtime.langgraph.thread.portal import BlockingStream
from ramify.runtime.user_code.call_sites import CallSite, call_site
from ramify.runtime.user_code.sandbox import Sandbox, SyncSandbox, sandbox_parameter
from ramify.runtime.user_code.scope import current_scope, is_in_a_run
from ramify.runtime.user_code.worker_threads import await_on_loop, run_loop_of_thread, running_loop, start_on_run_loop
from ramify.runtime.user_code.workflow_loader import canonical_module, file_ref, load_target
from ramify.step_options import check_hook, check_options, one_of

if TYPE_CHECKING:
    from ramify.compiler.kept_plans import KeptPlans
    from ramify.session import Runtime

P = ParamSpec("P")
R = TypeVar("R")
EffectName = Literal["pure", "readonly", "revertible", "irreversible"]
InForkName = Literal["refuse", "recorded", "leave"]


class Step(Generic[P, R]):
    """A function under `@step`: one operation on one world, recorded in the journal, retried and reused as
    declared.
    """

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
            sandbox=definition.sandbox_parameter,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Start the step on the current branch; the result must be awaited. Raises `NotInARun` outside a workflow.

        In a function that is not async the call blocks and returns the result itself.
        """
        return self.begin(call_site(), args, kwargs)

    def begin(self, site: CallSite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        """Start the step as if it was called at `site`."""
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
    omit it.

    - `effect`: what the step may do. By default, a step that takes a world is revertible, and any other is unknown. A
      "readonly" step gets a copy of its branch's world, which is dropped after it: such steps run in parallel and
      need no snapshot. A step without a declared effect whose own code writes no file runs like that, too, if it may
      run in parallel with others (in `gather`, for example); if it turns out to write, it is run again, by itself.
    - `reuse=True` declares the step deterministic: with equal code, arguments and world, the result is taken from an
      earlier run.
    - `retry`: how often it is run again from its entry state after it raised.
    - `timeout`: for each attempt.
    - `name`: the name under which results are recorded; by default the function's. Keep it when you rename the
      function.

    The other arguments are for `effect="irreversible"`. An intent is stored before such a step starts. If a crash
    leaves its outcome unknown, these are tried in order; without them the run stops with `EffectInDoubt` until
    `ramify approve`.

    - `idempotent=True`: the receiver honours `ramify.idempotency_key()`, so the step runs again.
    - `reconcile(key, **arguments)`: returns `Happened(result)` or `DidNotHappen()`.

    Two arguments are for forks and for going back. Each hook may be called more than once.

    - `compensate(key, result, **arguments)`: undoes the effect if the run goes back to before it, or if its branch is
      released.
    - `in_fork`: what happens on a branch of a fork, or in a run forked from another: "refuse" (the default), use the
      "recorded" result for the same arguments, or run it and "leave" its effect.
    """
    check_options(name=name, retry=retry, reuse=reuse, idempotent=idempotent)
    outside = Outside(idempotent, reconcile, compensate, one_of(InFork, "in_fork", in_fork) or InFork.REFUSE)
    declared = one_of(Effect, "effect", effect)

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        if isinstance(function, staticmethod | classmethod):
            what, kind = function.__func__.__qualname__, type(function).__name__
            raise TypeError(f"@step stands above @{kind} of {what}: put it below, directly above the `def`")
        if not inspect.isroutine(function):
            raise TypeError(f"{function!r} is not a function: put @step on a `def` or an `async def`")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"step {function.__qualname__!r} is a generator: return its values")
        parameter = sandbox_parameter(function)
        known = declared or (Effect.REVERTIBLE if parameter else Effect.UNKNOWN)
        if known is Effect.PURE and parameter is not None:
            raise TypeError(
                f"step {function.__qualname__!r} is declared pure but takes a Sandbox: remove one of the two"
            )
        if known is Effect.READONLY and parameter is None:
            raise TypeError(
                f"step {function.__qualname__!r} is declared readonly but takes no Sandbox: "
                "add the parameter, or declare it pure"
            )
        if known is not Effect.IRREVERSIBLE and outside != Outside():
            raise TypeError(
                f"step {function.__qualname__!r}: idempotent, reconcile, compensate and in_fork are for "
                "effect='irreversible'"
            )
        if known is Effect.IRREVERSIBLE and reuse:
            raise TypeError(
                f"step {function.__qualname__!r} is irreversible and declared reuse=True: if its result were reused, "
                "the effect would not happen. Remove one of the two; in_fork='recorded' reuses the result on a branch"
            )
        check_hook(function, "reconcile", reconcile, "key", left_out=parameter)
        check_hook(function, "compensate", compensate, "key", "result", left_out=parameter)
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
        self._plans: KeptPlans | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run under the ambient `Runtime`, or under a new one with default settings.

        A workflow that another workflow calls becomes a part of the caller's run: on its branch, within its deadline,
        in its journal. A deadline of its own counts only if it is run by itself. Raises `NestedWorkflow` if it is
        called in a step or a LangGraph node, or was declared for another workspace.

        The result must be awaited. In a workflow that is not async the call blocks and returns the result itself; so
        does a workflow that is not async if no event loop runs.
        """
        result: Coroutine[Any, Any, R]
        if run_loop_of_thread():
            result = self._wait(args, kwargs)
        elif self._plain and not is_in_a_run() and running_loop() is None:
            result = _now(self._run(args, kwargs))
        else:
            result = self._run(args, kwargs)
        return result

    def plans(self) -> KeptPlans:
        """What was read and compiled last in this process."""
        from ramify.compiler.kept_plans import KeptPlans

        self._plans = self._plans or KeptPlans()
        return self._plans

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
        if self.workspace is None or str(paths.expanded(self.workspace).resolve()) == theirs:
            return
        if self._is_declared_as(scope.run.record.workflow):
            return
        at = "" if self.workspace.is_absolute() else f" (here {self.workspace.resolve()})"
        raise NestedWorkflow(
            f"workflow {name!r} is declared for the workspace {self.workspace}{at}, and was called in a run on "
            f"{theirs or 'none'}: a run has one workspace; remove it from the declaration, "
            "or run the workflow by itself"
        )

    def _is_declared_as(self, ref: str) -> bool:
        """Whether the workflow at `ref`, whose run this is, was declared for the same workspace.

        A workspace that is named relative to the current folder stays the run's, wherever the run is resumed.
        """
        try:
            return bool(load_target(ref).workspace == self.workspace)
        except (TargetBroken, TargetNotFound):  # defined in a notebook or inside a function
            return False

    def invoke(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it and block until it ends. Not from inside a running event loop."""
        if run_loop_of_thread():
            inner: R = self._wait(args, kwargs)
            return inner
        return asyncio.run(self._run(args, kwargs))


class StreamingWorkflow(Workflow[P, list[R]], Generic[P, R]):
    """A generator under `@workflow`. `await workflow(...)` returns all that it yields, as a list."""

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        """Yield each item as soon as the workflow yields it: `async for item in workflow.stream(...)`.

        In code that is not async: `for item in ...`, which raises `WouldBlock` if an event loop runs. Raises as a
        call of the workflow does. The run is at most one item ahead of its reader. If the stream is closed early
        (`contextlib.aclosing`), the run is cancelled, and `ramify resume` continues it. Called by a workflow, it is a
        part of that workflow's run.
        """
        from ramify.session import Runtime

        apart = run_loop_of_thread() is not None or not inspect.isasyncgenfunction(self.__wrapped__)
        # on a running loop, the stream is read by that loop
        ambient = Runtime.ambient() if running_loop() is None else None
        return Stream(self._items(args, kwargs, apart, ambient), BlockingStream)

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


def load_workflow(ref: str) -> Workflow[..., Any]:
    """The workflow of a reference. Raises `TargetNotFound`, also if the name means something else, and
    `TargetBroken`."""
    found = load_target(ref)
    if not isinstance(getattr(found, "__ramify_workflow__", None), WorkflowInfo):
        raise TargetNotFound(f"{ref} is a {type(found).__name__}, not a workflow: put @workflow on it")
    workflow: Workflow[..., Any] = found
    return workflow


def steps_of(workflow: Workflow[..., Any]) -> dict[str, StepDef]:
    """The steps in the workflow's module, by name."""
    known = workflow.__wrapped__.__globals__.values()
    return {value.definition.name: value.definition for value in known if isinstance(value, Step)}


class _Making(Protocol):
    """The decorator that `@workflow(...)` with arguments returns."""

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
    """Make a function a workflow; a generator becomes a workflow that streams what it yields.

    A workflow that is not async runs in its own thread. There, calls that an async workflow awaits (steps,
    `branches.map`, `adopt`, `llm`, `interrupt`, other workflows) block and return their result, and `async with` is
    `with`.

    `workspace`: the folder that its worlds start from; it is never written to. `deadline`: of the whole run, carried
    by every model call. Both can also be given when the workflow is run.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        if not inspect.isfunction(function):
            raise TypeError(f"{function!r} is not a function: put @workflow on a `def` or an `async def`")
        streams = inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
        return (StreamingWorkflow if streams else Workflow)(
            function,
            None if workspace is None else Path(workspace),
            None if deadline is None else seconds(deadline),
        )

    return decorate if function is None else decorate(function)
