"""The plan of a workflow that a process runs or resumes often: its code is read and compiled again only if something
that the plan is made from has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramify.compiler.estimates import Estimates
from ramify.compiler.plan import PLAN_VERSION, Plan
from ramify.compiler.spec import Spec


@dataclass(frozen=True, slots=True)
class _Reading:
    """holds: whether a second reading would give the same Spec."""

    spec: Spec
    holds: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class _Kept:
    spec: Spec
    plan: Plan
    estimates: Estimates


class KeptPlans:
    """What was read and compiled last for one workflow. Keep it with the workflow: it keeps the workflow's code
    alive."""

    def __init__(self) -> None:
        self._reading: tuple[object, _Reading] | None = None
        self._kept: _Kept | None = None

    def plan(
        self,
        function: Callable[..., Any],
        *,
        ref: str,
        deadline_s: float | None,
        estimates: Estimates,
        by_files: bool = False,
    ) -> Plan:
        """Return the plan of a function under `@workflow`, as `compile_workflow` does.

        It is the one before if the code and what it refers to are the same objects, and so are the estimates.
        `by_files`: the answers of the estimates depend on files as well, so the passes run in any case.

        Raises:
            CompileError: The workflow cannot be compiled.
        """
        spec, before = self.spec(function, ref=ref, deadline_s=deadline_s), self._kept
        if before is not None and before.spec is spec and before.estimates is estimates and not by_files:
            return before.plan
        from ramify.compiler.pipeline import compile_spec  # not needed where code is only compared with a plan

        plan = compile_spec(spec, estimates=estimates).plan
        self._kept = _Kept(spec, plan, estimates)
        return plan

    def spec(
        self,
        function: Callable[..., Any],
        *,
        ref: str,
        deadline_s: float | None,
        version: int = PLAN_VERSION,
        minor: int | None = None,
        without: frozenset[str] = frozenset(),
    ) -> Spec:
        """Return the workflow as `read_workflow` reads it. It is the one before if the code and what it refers to are
        the same objects.

        Raises:
            CompileError: The workflow cannot be read.
        """
        how, before = (ref, deadline_s, version, minor, without), self._reading
        if before is not None and before[0] == how and before[1].holds():
            return before[1].spec
        from ramify.compiler.frontend.python.spec_inputs import recorded_inputs
        from ramify.compiler.frontend.python.workflow_reader import read_workflow

        with recorded_inputs() as inputs:
            spec = read_workflow(
                function, ref=ref, deadline_s=deadline_s, version=version, minor=minor, without=without
            )
        self._reading = how, _Reading(spec, inputs.unchanged)
        return spec
