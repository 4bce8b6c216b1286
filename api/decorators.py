"""`@step` and `@workflow`: plain functions that the compiler can read and the runtime can replay."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from ramify.compiler.plan import Effect, OpKind, StepInfo, WorkflowInfo
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.errors import NestedWorkflow, NotInARun
from ramify.runtime.loading import canonical_module, file_ref
from ramify.runtime.run import RunScope
from ramify.runtime.sandbox import Sandbox, SyncSandbox, sandbox_parameter
from ramify.runtime.scope import current_scope, is_in_a_run
from ramify.runtime.sites import call_site
from ramify.runtime.steps import StepDef, begin_step, call_inline

P = ParamSpec("P")
R = TypeVar("R")
EffectName = Literal["pure", "revertible", "irreversible"]


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
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Begin the step on the current branch. Raises `NotInARun` outside a workflow."""
        scope = current_scope(f"step {self.definition.name!r} was called")
        if not isinstance(scope, RunScope):
            raise NotInARun(
                f"step {self.definition.name!r} was called in a LangGraph node: call a plain function there"
            )
        if scope.step is not None:
            return self._inline(scope, args, kwargs)
        op = scope.run.op(OpKind.RUN, call_site())
        return begin_step(scope, self.definition, op, args, kwargs)

    def _inline(self, scope: RunScope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise NotInARun(
                f"step {self.definition.name!r} was called in a synchronous step, which cannot await it: "
                "call a plain function there"
            ) from None
        return call_inline(self.definition, scope.sandbox, args, kwargs)


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
) -> Any:
    """Make a function a step.

    A parameter annotated `Sandbox` (`SyncSandbox` in a function that is not async) gets the step's world; callers
    leave it out. `effect`: what it may do; without it, a step that takes a world is revertible, any other unknown.
    `reuse=True` declares it deterministic: equal code, arguments and world state, equal result. `retry`: how often
    it is run again from its entry state after it raised. `timeout`: of one attempt.
    """

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"step {function.__qualname__!r} is a generator: return its values")
        parameter = sandbox_parameter(function)
        declared = Effect(effect) if effect else None
        known = declared or (Effect.REVERTIBLE if parameter else Effect.UNKNOWN)
        if known is Effect.PURE and parameter is not None:
            raise TypeError(
                f"step {function.__qualname__!r} is declared pure but takes a Sandbox: drop one of the two"
            )
        if retry < 0:
            raise ValueError(f"step {function.__qualname__!r}: retry={retry} is negative")
        limit = None if timeout is None else seconds(timeout)
        definition = StepDef(name or function.__qualname__, function, known, parameter, reuse, retry, limit)
        return Step(function, definition, declared)

    return decorate if function is None else decorate(function)


class Workflow(Generic[P, R]):
    """A function under `@workflow`. `await workflow(...)` or `workflow.invoke(...)` runs it."""

    def __init__(
        self, function: Callable[P, Coroutine[Any, Any, R]], workspace: Path | None, deadline_s: float | None
    ):
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.workspace = workspace
        self.deadline_s = deadline_s
        ref = file_ref(function) or f"{function.__module__}:{function.__qualname__}"
        self.__ramify_workflow__ = WorkflowInfo(name=function.__qualname__, ref=ref, deadline_s=deadline_s)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run under the ambient `Runtime`, or under one with the defaults that is opened for this call."""
        from ramify.session import Runtime

        if is_in_a_run():
            raise NestedWorkflow(
                f"workflow {self.__ramify_workflow__.name!r} was called inside a run, which is not supported yet: "
                "put what the two workflows share into a plain async function"
            )
        ambient = Runtime.ambient()
        if ambient is not None:
            result: R = await ambient.start(self, args, kwargs)
            return result
        async with Runtime() as runtime:
            result = await runtime.start(self, args, kwargs)
            return result

    def invoke(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same, blocking. Not from inside a running event loop."""
        return asyncio.run(self(*args, **kwargs))


@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *, workspace: str | Path | None = None, deadline: Duration | None = None
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Workflow[P, R]]: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    workspace: str | Path | None = None,
    deadline: Duration | None = None,
) -> Any:
    """Make an async function a workflow.

    `workspace`: the folder that its worlds start from (never written to). `deadline`: the whole run's, which every
    model call carries on. Both can be given, or given anew, when it is run.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"workflow {function.__qualname__!r} is not an async function: write `async def`")
        return Workflow(
            function,
            None if workspace is None else Path(workspace),
            None if deadline is None else seconds(deadline),
        )

    return decorate if function is None else decorate(function)
