"""The plan of a workflow that a process runs often: it is compiled again only if something that it is made from has
changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramify.compiler.estimates import Estimates
from ramify.compiler.pipeline import compile_spec
from ramify.compiler.plan import Plan
from ramify.compiler.spec import Spec


@dataclass(frozen=True, slots=True)
class _Kept:
    """holds: whether a second reading would give the same Spec."""

    spec: Spec
    holds: Callable[[], bool]
    plan: Plan
    estimates: Estimates


class KeptPlans:
    """What was compiled last for one workflow. Keep it with the workflow: it keeps the workflow's code alive."""

    def __init__(self) -> None:
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
        before = self._kept
        if before is None or not before.holds():
            spec, holds = _read(function, ref, deadline_s)
        elif before.estimates is estimates and not by_files:
            return before.plan
        else:
            spec, holds = before.spec, before.holds
        plan = compile_spec(spec, estimates=estimates).plan
        self._kept = _Kept(spec, holds, plan, estimates)
        return plan


def _read(function: Callable[..., Any], ref: str, deadline_s: float | None) -> tuple[Spec, Callable[[], bool]]:
    from ramify.compiler.frontend.python.spec_inputs import recorded_inputs
    from ramify.compiler.frontend.python.workflow_reader import read_workflow

    with recorded_inputs() as inputs:
        spec = read_workflow(function, ref=ref, deadline_s=deadline_s)
    return spec, inputs.unchanged
