"""Plans of workflows, for tests that look at a plan or change it before a run."""

from __future__ import annotations

from typing import Any

from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import Plan
from ramify.decorators import Workflow
from ramify.runtime.estimates.recorded_runs import RecordedEstimates


def compile_plan(workflow: Workflow[..., Any], seen: RecordedEstimates | None = None) -> Plan:
    """The plan of a workflow as its code is now, with the durations of recorded runs."""
    info = workflow.__ramify_workflow__
    return compile_workflow(
        workflow, ref=info.ref, deadline_s=info.deadline_s, estimates=seen or RecordedEstimates(())
    ).plan
