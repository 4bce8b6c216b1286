"""The error with which a failed run ends, and what it says about going on."""

from __future__ import annotations

import traceback

from ramify.compiler.plan import site_file
from ramify.runtime.errors import EffectInDoubt, ResultNotKept, RunError, RunFailed, StepFailed, error_text
from ramify.runtime.execution.run import Run
from ramify.runtime.journal.failures import raised_by


def failure_of(run: Run, error: Exception) -> RunError:
    """Return the error that the caller of a run gets when its workflow raised `error`."""
    hint = (
        f"The run is kept (`ramify show {run.record.id}`). If the cause lies outside the code, "
        f"`ramify resume {run.record.id}` continues from here. After a change of the code, add --show-changes first"
    )
    if isinstance(error, EffectInDoubt | ResultNotKept):  # resuming before a person decides fails in the same way
        hint = f"The run is kept: `ramify effects {run.record.id}` lists what it did outside"
    if (stands := _why_it_stands(run, error)) is not None:
        hint = stands
    elif run.journal.followers.has_caught(error):
        hint += (
            ". Failures that the workflow caught are then raised again; "
            f"`ramify resume {run.record.id} --from STATE` goes back to before them"
        )
    where = raised_by(error)
    shown = error_text(error)
    if where is None or where.step is None:
        said = f"workflow {run.record.name!r} raised {shown}{_double_await_hint(error)}"
        return RunFailed(f"{said}\n{hint}", run_id=run.record.id)
    notes = "\n".join(getattr(error, "__notes__", ()))
    return StepFailed(f"{shown}\n{notes}\n{hint}", step=where.step, branch=where.branch, run_id=run.record.id)


def _why_it_stands(run: Run, error: Exception) -> str | None:
    """Return the hint for a failure that a resume raises again, because an effect may be there because of it."""
    effects = map(run.journal.effect_after, run.journal.followers.ended_with(error))
    effect = next((one for one in effects if one is not None), None)
    if effect is None:
        return None
    return (
        f"The run is kept. A resume raises this again and does not try what failed: the irreversible step "
        f"{effect.step!r} followed it. `ramify resume {run.record.id} --from STATE` goes back to before it "
        f"(`ramify log {run.record.id}` lists the states)"
    )


def _double_await_hint(error: Exception) -> str:
    """Return a hint for a coroutine that was awaited twice: Python's message names neither the place nor the fix."""
    if not isinstance(error, RuntimeError) or str(error) != "cannot reuse already awaited coroutine":
        return ""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"\n{site_file(at.filename)}:{at.lineno}: the awaitable of a step or a model call is awaited a second time. "
        "Await it once and keep its result, or pass it to `asyncio.create_task`: a task may be awaited again"
    )
