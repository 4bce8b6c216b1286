"""Steps: their definition, a call of a step, and how its code is run."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ramify.compiler.plan import ADDED, UNORDERED, Effect, OpId, OpKind, PlanOp
from ramify.fork_engine.gc_pins import WorldPins
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.codec.return_types import refuse_unstorable_return
from ramify.runtime.effects.fence import ORDINARY, Fence, Outside
from ramify.runtime.errors import BadArguments, EffectRefused
from ramify.runtime.execution.run import RunScope, StepFrame, new_row
from ramify.runtime.journal.equal_calls import SET_ORDER, THREADS
from ramify.runtime.journal.recorded_order import is_beside, is_instead
from ramify.runtime.records import OpRecord
from ramify.runtime.reuse.commands import ReusableCommands
from ramify.runtime.user_code.fork_guard import InOneProcess
from ramify.runtime.user_code.hash_order import order_of_sets
from ramify.runtime.user_code.program_exits import ExitsOfRuns
from ramify.runtime.user_code.sandbox import Sandbox, SyncSandbox
from ramify.runtime.user_code.scope import current_scope, entered
from ramify.runtime.user_code.worker_threads import in_thread

_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))


def is_plain(value: object) -> bool:
    """Whether nobody can change the value, so that it needs no copy."""
    return type(value) in _PLAIN


@dataclass(frozen=True, slots=True)
class StepDef:
    """A step as declared by its decorator."""

    name: str
    function: Callable[..., Any]
    effect: Effect
    sandbox_parameter: str | None
    reuse: bool = False
    retry: int = 0
    timeout: float | None = None
    outside: Outside = ORDINARY  # for irreversible steps: idempotency, hooks, behaviour in forks


def bind(step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, with defaults and without the sandbox: what the result depends on."""
    return bind_with_defaults(step, args, kwargs)[0]


def bind_with_defaults(
    step: StepDef, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Like `bind`; also return the names of the parameters that took their default."""
    names = _positional(step.function, step.sandbox_parameter)
    if names is not None and len(args) == len(names) and not kwargs:
        return dict(zip(names, args, strict=True)), frozenset()  # most calls, in a tenth of the time
    signature = _signature(step.function, step.sandbox_parameter)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        mend = (
            ""
            if "'self'" not in str(error)
            else "; a step cannot be a method: make it a function and pass the object"
        )
        raise BadArguments(f"step {step.name}{signature}: {error}{mend}") from None
    given = set(bound.arguments)
    bound.apply_defaults()
    return dict(bound.arguments), frozenset(bound.arguments) - given


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any], left_out: str | None = None) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=[p for name, p in signature.parameters.items() if name != left_out])


@functools.lru_cache(maxsize=1024)
def _positional(function: Callable[..., Any], left_out: str | None) -> tuple[str, ...] | None:
    """Return the names of the parameters if all of them may be given by position, and no others."""
    parameters = _signature(function, left_out).parameters
    by_position = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return tuple(parameters) if all(one.kind in by_position for one in parameters.values()) else None


async def call_inline(step: StepDef, face: Sandbox | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a step inside another step. It is part of the outer step: it has no journal key, seal or effect fence."""
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
    """Call the step's function with its arguments and its sandbox: coroutine functions here, others in a thread."""
    if inspect.iscoroutinefunction(step.function):
        if step.sandbox_parameter is not None:
            arguments[step.sandbox_parameter] = face
        with ExitsOfRuns():
            return await InOneProcess(_call_by_name(step.function, arguments), f"step {step.name!r}")
    if step.sandbox_parameter is not None and face is not None:
        arguments[step.sandbox_parameter] = SyncSandbox(face, asyncio.get_running_loop())
    with ExitsOfRuns():
        return await in_thread(_call_by_name, step.function, arguments, what=f"step {step.name!r}")


def _call_by_name(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call with arguments by name; supports positional-only and variadic parameters."""
    signature = _signature(function)
    bound = signature.bind_partial()
    bound.arguments.update({name: arguments[name] for name in signature.parameters if name in arguments})
    return function(*bound.args, **bound.kwargs)


class StepTimeout(TimeoutError):
    """A step took longer than its own timeout."""


@dataclass(frozen=True, slots=True)
class StepCall:
    """A call of a step: its scope, arguments and journal key."""

    scope: RunScope
    step: StepDef
    op: PlanOp
    key: str
    args_digest: str
    encoded: Encoded  # the arguments: each attempt gets a copy of its own, unless all are `plain`
    defaults: frozenset[str] = frozenset()  # the parameters that took their default
    # the names in the plan, by the names of now, of parameters that have other names now
    names: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, Any] | None = None  # the arguments, if none of them can be changed
    from_main: bool = False  # the workflow's own task or thread called it
    aside: bool = False  # it only reads, in a separate world on its branch's snapshot

    @property
    def arguments(self) -> str:
        """The encoded arguments."""
        return self.encoded.text()

    def fence(self) -> Fence | None:
        if self.step.effect is not Effect.IRREVERSIBLE:
            return None
        run = self.scope.run
        branch, outside = self.scope.branch.path, self.step.outside
        named = run.record.id, self.step.name, self.key, branch, self.arguments, outside
        foreseen = self.op.kind is not OpKind.BREAK and ADDED not in self.op.attrs and not run.was_changed
        fence = Fence(run.journal, run.clock, *named, self.op.id, foreseen, self.is_once, run.was_changed)
        return replace(fence, defaults=self.defaults, names=self.names, from_main=self.from_main)

    @property
    def is_once(self) -> bool:
        """Whether a branch calls this operation at most once."""
        return self.op.origin is not None and not self.op.origin.repeats

    def row(self, **changes: Any) -> OpRecord:
        args = {"step": self.step.name, "args_digest": self.args_digest, **changes}
        marks = {SET_ORDER: order_of_sets()} if UNORDERED in self.op.attrs else {}
        if why := self.scope.run.journal.equal.by_chance(self.key):
            marks[THREADS] = why
        if marks:
            args["attrs"] = {**args.get("attrs", {}), **marks}
        return new_row(self.scope, OpKind.RUN, self.op.id, self.key, **args)

    @property
    def seal_key(self) -> str:
        """The key of the SEAL that follows the step."""
        return f"{self.key}|SEAL"


class StepResult(NamedTuple):
    """What a step has returned: encoded, the digest of that, and decoded, which a resumed run would see."""

    text: str
    digest: str
    value: Any


async def run_attempt(call: StepCall, face: Sandbox | None, attempt: int) -> StepResult:
    """Run the step's code once."""
    step = call.step
    limit = asyncio.timeout(step.timeout)
    try:
        async with limit:
            value = await run_code(call, face, attempt)
    except TimeoutError as error:
        if limit.expired():
            raise StepTimeout(f"step {step.name!r} took longer than its timeout of {step.timeout:g} s") from error
        raise
    finally:
        if face is not None:
            face.end()
    with _result_may_be_lost(call):
        encoded = Encoded(value, f"step {step.name!r}: its result", unicode=True)
        del value  # it may be large, and `encoded` has all of it
        return StepResult(encoded.text(), encoded.digest(), encoded.take())


@contextmanager
def _result_may_be_lost(call: StepCall) -> Iterator[None]:
    """Raise `ResultNotKept` if encoding the result of an irreversible step raises: its effect has happened."""
    fence = call.fence()
    try:
        yield
    except Exception as error:
        if fence is None:
            raise
        raise fence.result_lost(str(error)) from error


async def run_code(call: StepCall, face: Sandbox | None, attempt: int) -> Any:
    scope = replace(call.scope, step=StepFrame(call.step.name, call.key, call.op, face, attempt))
    call.scope.run.journal.forget_attempt(f"{call.key}|a{attempt}")
    with entered(scope):
        arguments = call.encoded.value() if call.plain is None else dict(call.plain)
        return await call_step(call.step, arguments, face)


async def after_recorded_effects(call: StepCall) -> None:
    """Let an irreversible step that no process has begun wait until the workflow has reached the recorded ones: if it
    takes another way than before, both would be done. It does not hold its branch meanwhile, which they may need."""
    journal = call.scope.run.journal
    if call.step.effect is not Effect.IRREVERSIBLE or journal.is_recorded(call.key):
        return
    if journal.effect(call.key) is None:
        refuse_unstorable_return(call.step.function, f"step {call.step.name!r}")
        if not call.is_once:  # otherwise it is refused in any case
            await journal.turns.past_effects(lambda key: is_beside(key, call.key), hasty=True)
        if (fence := call.fence()) is not None:
            fence.refuse_other_arguments()  # now, and again when it opens: the next wait may be as long as the run
        await journal.turns.past_effects(lambda key: is_instead(key, call.key))


def reusable_commands(call: StepCall, attempt: int, world_pins: WorldPins) -> ReusableCommands:
    def blank(kind: OpKind, op: OpId, key: str) -> OpRecord:
        return new_row(call.scope, kind, op, key)

    return ReusableCommands(call.scope.run, f"{call.key}|a{attempt}", call.op.id, blank, world_pins)
