"""A step as its decorator describes it, and how its function is called."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramify.compiler.plan import Effect
from ramify.runtime.effects import ORDINARY, Outside
from ramify.runtime.errors import BadArguments, EffectRefused
from ramify.runtime.forked import InOneProcess
from ramify.runtime.run import RunScope
from ramify.runtime.sandbox import Sandbox, SyncSandbox
from ramify.runtime.scope import current_scope
from ramify.runtime.threads import in_thread


@dataclass(frozen=True, slots=True)
class StepDef:
    """A step as its decorator describes it."""

    name: str
    function: Callable[..., Any]
    effect: Effect
    sandbox_parameter: str | None
    reuse: bool = False
    retry: int = 0
    timeout: float | None = None
    outside: Outside = ORDINARY  # of an irreversible step: how it meets the outside


def bind(step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, defaults filled in, the world left out: what the result depends on."""
    return bind_and_fill(step, args, kwargs)[0]


def bind_and_fill(
    step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """As `bind`, and the names of the parameters whose values are the defaults."""
    signature = _signature(step.function, step.sandbox_parameter)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        mend = (
            "" if "'self'" not in str(error) else "; a step is no method: make it a function, or hand it the object"
        )
        raise BadArguments(f"step {step.name}{signature}: {error}{mend}") from None
    given = set(bound.arguments)
    bound.apply_defaults()
    return dict(bound.arguments), frozenset(bound.arguments) - given


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any], left_out: str | None = None) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=[p for name, p in signature.parameters.items() if name != left_out])


async def call_inline(step: StepDef, face: Sandbox | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A step called inside a step is part of it: no key and no seal of its own, and so no fence either."""
    outer = current_scope("a step")
    if step.effect is Effect.IRREVERSIBLE and isinstance(outer, RunScope) and outer.step is not None:
        planned = outer.run.steps.get(outer.step.name)
        if planned is None or planned.effect is not Effect.IRREVERSIBLE:
            raise EffectRefused(
                f"step {step.name!r} is irreversible and was called inside step {outer.step.name!r}, which is not: "
                "call it from the workflow, or declare the outer step irreversible"
            )
    return await call_step(step, bind(step, args, kwargs), face)


async def call_step(step: StepDef, arguments: dict[str, Any], face: Sandbox | None) -> Any:
    """Call the step's function with its arguments by name and its world: an async one here, others in a thread."""
    if inspect.iscoroutinefunction(step.function):
        if step.sandbox_parameter is not None:
            arguments[step.sandbox_parameter] = face
        return await InOneProcess(_call_bound(step.function, arguments), f"step {step.name!r}")
    if step.sandbox_parameter is not None and face is not None:
        arguments[step.sandbox_parameter] = SyncSandbox(face, asyncio.get_running_loop())
    return await in_thread(_call_bound, step.function, arguments, what=f"step {step.name!r}")


def _call_bound(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call with arguments by name, positional-only and variadic parameters included."""
    signature = _signature(function)
    bound = signature.bind_partial()
    bound.arguments.update({name: arguments[name] for name in signature.parameters if name in arguments})
    return function(*bound.args, **bound.kwargs)
