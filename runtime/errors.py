"""What can go wrong while a plan is run.

    RunError
    ├── StepFailed            a step raised; names step, branch, last output; the run is resumable
    ├── NotInARun             a step, fork or model call outside a workflow
    ├── WorkflowChanged       the code is no longer what the plan was compiled from
    ├── NotSerialisable       an argument or result that the journal cannot keep
    ├── RunNotFound           no run, checkpoint or snapshot of that name
    ├── AmbiguousRef          a prefix that names several
    ├── RunLocked             another process works on that run
    ├── StoreError            the database is missing, of another version, or refuses to write
    └── PlanMismatch          the plan has no operation for what the workflow does
"""

from __future__ import annotations


class RunError(Exception):
    """Anything that the runtime reports."""


class StepFailed(RunError):
    """A step raised. `step`, `branch` and `run_id` say where; the cause is chained."""

    def __init__(self, message: str, *, step: str, branch: str, run_id: str) -> None:
        self.step = step
        self.branch = branch
        self.run_id = run_id
        super().__init__(message)


class NotInARun(RunError):
    """Called outside a running workflow."""


class WorkflowChanged(RunError):
    """The code is no longer what the plan was compiled from."""


class NotSerialisable(RunError):
    """A value that the journal cannot keep."""


class RunNotFound(RunError):
    """Nothing of that name."""


class AmbiguousRef(RunError):
    """A prefix that names several things."""


class RunLocked(RunError):
    """Another process works on that run."""


class StoreError(RunError):
    """The database cannot be used."""


class PlanMismatch(RunError):
    """The plan does not fit the workflow that runs under it."""
