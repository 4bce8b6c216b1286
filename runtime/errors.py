"""What can go wrong while a plan is run.

RunError
├── RunFailed             the workflow raised; the run is kept and can be resumed
│   └── StepFailed        a step did; names step, branch, last output
├── RunCancelled          `ramify cancel` stopped it; it can be resumed
├── RunWaiting            it asks a person; `.question`
├── NotInARun             a step, fork or model call outside a workflow
├── WouldBlock            a stream read with a plain `for` where an event loop runs, which would stand still
├── WorkflowChanged       the code is no longer what the plan was compiled from
├── EffectNotMet          an irreversible step would run while the journal holds an equal one that was not met
├── CallNotTold           Python does not say where on its line a call stands, and several stand there
├── NotSerialisable       an argument or result that the journal cannot keep
├── RunNotFound           no run, checkpoint or snapshot of that name
├── AmbiguousRef          a prefix that names several
├── RunLocked             another process works on that run
├── StoreError            the database is missing, of another version, or refuses to write
├── BranchReleased        a branch used after its fork, or its run, was over
├── StateLost             a world with unsealed changes is gone
├── NotAwaited            the workflow returned while steps that nobody waited for had not ended
├── Diverged              an irreversible step met again in another state than the one it was done in
├── EffectInDoubt         an irreversible step was begun, and nobody knows whether it happened
├── WrongReuse            what was taken for equal was computed again and differs
├── HiddenWrites          (inside) a step that was seen to write nothing changed files: it is run again in turn
├── Unrecoverable         a snapshot is gone, and what made it cannot be done again
├── CompensationFailed    the hook that was to undo an effect raised
├── EffectUndone          a branch to be adopted, of which an effect was undone
├── EffectRefused         an irreversible step on a branch that may be thrown away
├── NestedWorkflow        a workflow called where it cannot be part of the run: in a step, or of another workspace
├── BadArguments          a workflow called with arguments that it does not take
├── TargetNotFound        no such file, module or name to run
├── CommandFailed         `sandbox.run(…, check=True)` and the command failed; `.result`
└── PlanMismatch          the plan has no operation for what the workflow does
"""

from __future__ import annotations

from ramify.sandboxes.contract import RunResult


class RunError(Exception):
    """Anything that the runtime reports."""


class RunFailed(RunError):
    """The workflow raised; the cause is chained. The run is kept and can be resumed."""

    def __init__(self, message: str, *, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(message)


class StepFailed(RunFailed):
    """A step raised. `step` and `branch` say where; the cause is chained."""

    def __init__(self, message: str, *, step: str, branch: str, run_id: str) -> None:
        self.step = step
        self.branch = branch
        super().__init__(message, run_id=run_id)


class RunCancelled(RunError):
    """Somebody asked for the run to be stopped. It is kept and can be resumed."""

    def __init__(self, message: str, *, run_id: str) -> None:
        self.cancelled_run = run_id
        super().__init__(message)


class RunWaiting(RunError):
    """The workflow asks a person. It goes on when the run is resumed with the answer."""

    def __init__(self, message: str, *, question: object, run_id: str) -> None:
        self.question, self.waiting_run = question, run_id
        super().__init__(message)


class NotInARun(RunError):
    """Called outside a running workflow."""


class WouldBlock(RunError):
    """It would hold the event loop on which it was called until it is over."""


class WorkflowChanged(RunError):
    """The code is no longer what the plan was compiled from. `parts`: the functions, classes and constants that
    changed; `steps`: those that may be affected."""

    def __init__(self, message: str, *, parts: tuple[str, ...] = (), steps: tuple[str, ...] = ()) -> None:
        self.parts, self.steps = parts, steps
        super().__init__(message)


class EffectNotMet(RunError):
    """An irreversible step was called where the plan did not foresee it, and the journal holds an equal one, which
    the workflow has not come to: it may be the same, so it is not done again."""

    def __init__(self, message: str, *, run_id: str, key: str) -> None:
        self.run_id, self.key = run_id, key
        super().__init__(message)


class CallNotTold(RunError):
    """Which of several calls of one line was made cannot be told: Python runs without column positions."""


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


class BranchReleased(RunError):
    """A branch was used after its fork, or its run, was over."""


class StateLost(RunError):
    """A world that held unsealed changes is gone."""


class NotAwaited(RunError):
    """The workflow returned while steps that it began, and nobody ever waited for, had not ended; they are
    stopped."""


class Diverged(RunError):
    """An irreversible step that was done is met again in another state: to do it again is not ours to decide."""


class EffectInDoubt(RunError):
    """An irreversible step was begun and not ended. `ramify approve` says what became of it."""

    def __init__(self, message: str, *, run_id: str, key: str) -> None:
        self.doubtful_run, self.key = run_id, key
        super().__init__(message)


class CompensationFailed(RunError):
    """The hook that was to undo an effect raised; the cause is chained. The effect stands."""

    def __init__(self, message: str, *, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(message)


class EffectUndone(RunError):
    """A branch is to be adopted, and an effect done on it was undone since: its results are no longer so."""


class EffectRefused(RunError):
    """An irreversible step was called on a branch that may be thrown away."""


class WrongReuse(RunError):
    """The checking mode computed again what was taken over, and something else came of it."""


class HiddenWrites(RunError):
    """A step ran in a world of its own, as its code writes to no file, and changed files all the same. It is run
    again on its branch."""


class Unrecoverable(RunError):
    """A lost snapshot that its lineage cannot bring back."""


class NestedWorkflow(RunError):
    """A workflow was called in a step or a LangGraph node, or was declared for another workspace than the run's."""


class BadArguments(RunError, TypeError):
    """A workflow was called with arguments that it does not take."""


class TargetNotFound(RunError):
    """No such file, module or name."""


class CommandFailed(RunError):
    """A checked command did not exit with 0."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        tail = (result.stderr or result.stdout).strip()[-2000:]
        how = "timed out" if result.timed_out else f"exited with {result.exit_code}"
        super().__init__(f"{result.command!r} {how}" + (f":\n{tail}" if tail else ""))
