"""What a new run starts from: its arguments, its workspace, its deadline and the plan that it runs under."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.code_changes import is_from_current_files, placed
from ramify.compiler.plan import Plan
from ramify.runtime.codec.return_types import refuse_unstorable_return
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.errors import BadArguments, PlanMismatch
from ramify.runtime.estimates.recorded_runs import RecentRuns, learned
from ramify.runtime.execution.driver import Launch
from ramify.runtime.store import RunStore

if TYPE_CHECKING:
    from ramify.decorators import Workflow


async def launch_of(
    store: RunStore,
    recent: RecentRuns,
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    workspace: str | Path | None,
    deadline: Duration | None,
    plan: Plan | None,
) -> tuple[Launch, dict[str, str]]:
    """Return a run to start, and the digests of steps that changed since a given plan was made.

    Without a plan the workflow is compiled, with the durations of its recorded runs. Raises `BadArguments` and
    `PlanMismatch`.
    """
    info = workflow.__ramify_workflow__
    try:
        signature(workflow.__wrapped__).bind(*args, **kwargs)
    except TypeError as error:
        raise BadArguments(f"{info.name}{signature(workflow.__wrapped__)}: {error}") from None
    refuse_unstorable_return(workflow.__wrapped__, f"workflow {info.name!r}")
    folder = workspace if workspace is not None else workflow.workspace
    code: dict[str, str] = {}
    if plan is None:
        seen = await learned(store, info.ref, folder, recent=recent)
        plan = workflow.plans().plan(
            workflow, ref=info.ref, deadline_s=info.deadline_s, estimates=seen, by_files=folder is not None
        )
    else:
        plan, code = _checked(plan, workflow)
    if plan.name != info.name:
        raise PlanMismatch(f"the plan is for {plan.name!r}, not for {info.name!r}")
    limit = seconds(deadline) if deadline is not None else (workflow.deadline_s or plan.deadline_s)
    where = None if folder is None else Path(folder)
    return Launch(plan, args, dict(kwargs), where, limit), code


def _checked(given: Plan, workflow: Workflow[..., Any]) -> tuple[Plan, dict[str, str]]:
    """Check a plan that was made by hand like one from a file."""
    plan = Plan.from_json(given.to_json())
    reuses = any(step.reuse for step in plan.steps)  # reuse compares the code that runs, not the plan's
    if plan.name == workflow.__ramify_workflow__.name and (reuses or not is_from_current_files(plan)):
        plan, found = placed(plan, workflow)
        return plan, found.digests
    return plan, {}
