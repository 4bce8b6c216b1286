"""What can go wrong while a plan is run.

RunError
├── RunFailed             the workflow raised; the run is kept and can be resumed
│   └── StepFailed        a step did; names step, branch, last output
├── RunCancelled          `ramify cancel` stopped it; it can be resumed
├── RunWaiting            it asks a person; `.questions`
├── AlreadyAnswered       somebody answered that question before; `.answer`
├── NotInARun             a step, fork or model call outside a workflow
├── WouldBlock            a stream read with a plain `for` where an event loop runs, which would stand still
├── WorkflowChanged       the code is no longer what the plan was compiled from
├── EffectNotMet          an irreversible step would run while the journal holds an equal one that was not met
├── CallNotTold           Python does not say where on its line a call stands, and several stand there
├── NotSerialisable       an argument or result that the journal cannot keep
│   └── ResultNotKept     an irreversible step was done, and its result cannot be kept; it is not done again
├── RunNotFound           no run, checkpoint or snapshot of that name
├── AmbiguousRef          a prefix that names several
│   └── SeveralQuestions  an answer that does not say which of a run's questions it is for
├── RunLocked             another process works on that run
├── UsedAfterFork         a forked child used what belongs to the process that it was forked from
├── RuntimeClosed         a Runtime was used after it was closed, or after its event loop ended
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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ramify.sandboxes.contract import RunResult

if TYPE_CHECKING:
    from ramify.runtime.journal.inbox import OpenQuestion


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
    """The workflow asks a person. It goes on when the run is resumed with the answer.

    `questions`: all that it waits for, each with its `id` and its `question`, in the order in which they were asked;
    `question` is the first one's.
    """

    def __init__(
        self, message: str, *, question: object, run_id: str, questions: Sequence[OpenQuestion] = ()
    ) -> None:
        self.question, self.waiting_run, self.questions = question, run_id, tuple(questions)
        super().__init__(message)


class AlreadyAnswered(RunError):
    """Somebody answered that question before: their answer stands. `answered_at` is the time in Unix seconds,
    `answered_by` what took it."""

    def __init__(
        self,
        message: str,
        *,
        question_id: str,
        read_answer: Callable[[], object],
        answered_at: float | None,
        answered_by: str,
    ) -> None:
        self.question_id, self._read_answer = question_id, read_answer
        self.answered_at, self.answered_by = answered_at, answered_by
        super().__init__(message)

    @property
    def answer(self) -> object:
        """The value of the answer that stands. Reading it imports the classes of that value."""
        return self._read_answer()


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


class ResultNotKept(NotSerialisable):
    """An irreversible step was done, and what it returned cannot be kept. It is not done again: `ramify approve`
    gives the run a result to go on with."""

    def __init__(self, message: str, *, run_id: str, key: str) -> None:
        self.doubtful_run, self.key = run_id, key  # it, too, waits for a person's word
        super().__init__(message)


class RunNotFound(RunError):
    """Nothing of that name."""


class AmbiguousRef(RunError):
    """A prefix that names several things."""


class SeveralQuestions(AmbiguousRef):
    """A run has several open questions, and the answer does not say which of them it is for. `questions` has them."""

    def __init__(self, message: str, *, questions: Sequence[OpenQuestion]) -> None:
        self.questions = tuple(questions)
        super().__init__(message)


class RunLocked(RunError):
    """Another process works on that run."""


class UsedAfterFork(RunError):
    """A forked child used a `Runtime`, a store or a run of the process that it was forked from."""


class RuntimeClosed(RunError):
    """A `Runtime` was used after it was closed, or after the event loop on which it was opened had ended."""


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
