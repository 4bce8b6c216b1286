"""What the decorators declare of a function, for the compiler to read from it without importing the public API."""

from __future__ import annotations

from dataclasses import dataclass

from ramify.compiler.plan import Effect


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What `@step` declares of a function. The compiler reads it from `function.__ramify_step__`."""

    name: str  # the function's qualified name
    module: str
    effect: Effect | None  # None: not declared
    takes_sandbox: bool
    reuse: bool = False
    in_fork: bool = False
    retried: bool = False  # a failed attempt is repeated
    sandbox: str | None = None  # the name of the parameter that takes the Sandbox


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """What `@workflow` declares of a function. The compiler reads it from `function.__ramify_workflow__`."""

    name: str
    ref: str  # how `ramify run` finds it: "path/to/file.py:name" or "module:name"
    deadline_s: float | None = None
