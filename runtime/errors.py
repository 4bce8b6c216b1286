"""The errors of the runtime. All derive from `RunError`.

RunError
├── RunFailed             the workflow raised; the run is kept and can be resumed
│   └── StepFailed        a step did; names step, branch, last output
├── RunCancelled          `ramify cancel` stopped it; it can be resumed
├── RunWaiting            it waits for a person's answer; `.questions`
├── AlreadyAnswered       the question has an answer already; `.answer`
├── NotInARun             a step, fork or model call outside a workflow
├── WouldBlock            a stream read with a plain `for` would block a running event loop
├── WorkflowChanged       the code is no longer what the plan was compiled from
├── EffectNotMet          an irreversible step would run while the journal holds an equal effect, not reached yet
├── CallNotTold           equal calls cannot be told apart: of threads, of a loop over a set, on one line
├── NotSerialisable       an argument or result that the journal cannot store
│   └── ResultNotKept     an irreversible step was performed, and its result cannot be stored; it is not repeated
├── RunNotFound           no run, checkpoint or snapshot of that name
├── AmbiguousRef          a prefix that names several
│   └── SeveralQuestions  an answer that does not say which of a run's questions it is for
├── RunLocked             another process works on that run
│   ├── RunPushed         the run was pushed to another machine, where it goes on
│   ├── LeaseHeld         another process renews its lease of the run; `.host`
│   └── LeaseLost         another process took the run over while this one was stopped or cut off; `.host`
├── UsedAfterFork         a forked child used an object that belongs to its parent process
├── RuntimeClosed         a Runtime was used after it was closed, or after its event loop ended
├── StoreError            the database is missing, of another version, or refuses to write
├── BranchReleased        a branch was used after the end of its fork or run
├── StateLost             a world with unsealed changes is gone
├── NotAwaited            the workflow returned while steps that nobody ever awaited were running
├── Diverged              a step that was performed is reached again in another state and must not be repeated
├── EffectInDoubt         an irreversible step was begun, and it is unknown whether its effect happened
├── WrongReuse            a reused result differs from the recomputed one
├── HiddenWrites          (internal) a step declared to be read-only changed files; it is run again in its turn
├── Unrecoverable         a snapshot is lost, and the operation that made it cannot be repeated
├── CompensationFailed    a compensate hook raised
├── EffectUndone          a branch to be adopted has an effect that was undone
├── EffectRefused         an irreversible step was called on a branch that may be discarded
├── NestedWorkflow        a workflow was called in a step, or belongs to another workspace than the run
├── BadArguments          a workflow or step was called with arguments that it does not take
├── TargetNotFound        no such file, module or name to run
├── TargetBroken          the file or module of a workflow raised while it was loaded
├── CommandFailed         `sandbox.run(…, check=True)` and the command failed; `.result`
└── PlanMismatch          the plan has no operation for what the workflow does
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ramify.sandboxes.contract import RunResult


class AskedQuestion(Protocol):
    """An open question of a run (`ramify.runtime.journal.inbox.OpenQuestion`)."""

    @property
    def id(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def question(self) -> Any: ...


class RunError(Exception):
    """The base class of the runtime's errors."""


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
    """The run was cancelled, for example by `ramify cancel`. It is kept and can be resumed."""

    def __init__(self, message: str, *, run_id: str) -> None:
        self.cancelled_run = run_id
        super().__init__(message)


class RunWaiting(RunError):
    """The workflow waits for a person's answer. Resume the run with the answer to continue.

    `questions`: all open questions in the order in which they were asked, each with its `id` and `question`.
    `question`: the first of them.
    """

    def __init__(
        self, message: str, *, question: object, run_id: str, questions: Sequence[AskedQuestion] = ()
    ) -> None:
        self.question, self.waiting_run, self.questions = question, run_id, tuple(questions)
        super().__init__(message)


class AlreadyAnswered(RunError):
    """The question has an answer already, which is not replaced. `answered_at`: Unix seconds. `answered_by`: the
    command or page that took the answer."""

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
        """The value of the recorded answer. Reading it imports the classes of that value."""
        return self._read_answer()


class NotInARun(RunError):
    """A function of a workflow was called outside a running workflow."""


class WouldBlock(RunError):
    """The call would block the running event loop until it ends."""


class WorkflowChanged(RunError):
    """The code is no longer what the plan was compiled from. `parts`: the functions, classes and constants that
    changed. `steps`: the steps that may be affected."""

    def __init__(self, message: str, *, parts: tuple[str, ...] = (), steps: tuple[str, ...] = ()) -> None:
        self.parts, self.steps = parts, steps
        super().__init__(message)


class EffectNotMet(RunError):
    """An irreversible step was called at a place that the plan does not contain, and the journal holds an equal
    effect that the workflow has not reached. Both may be the same call, so the step is not performed."""

    def __init__(self, message: str, *, run_id: str, key: str) -> None:
        self.run_id, self.key = run_id, key
        super().__init__(message)


class CallNotTold(RunError):
    """Calls cannot be told apart: several are on one line, and Python runs without column positions; or two threads
    of a workflow, or a loop over a set, call a step with equal arguments, so the result of one could be given to the
    other."""


class NotSerialisable(RunError):
    """A value that the journal cannot store."""


class ResultNotKept(NotSerialisable):
    """An irreversible step was performed, and its return value cannot be stored. It is not repeated: give the run a
    result with `ramify approve`."""

    def __init__(self, message: str, *, run_id: str, key: str) -> None:
        self.doubtful_run, self.key = run_id, key  # like an effect in doubt, it waits for a person's decision
        super().__init__(message)


class RunNotFound(RunError):
    """No run, checkpoint, snapshot or question has that name."""


class AmbiguousRef(RunError):
    """A name or prefix fits several things."""


class SeveralQuestions(AmbiguousRef):
    """A run has several open questions, and the answer does not name one. `questions`: the open questions."""

    def __init__(self, message: str, *, questions: Sequence[AskedQuestion]) -> None:
        self.questions = tuple(questions)
        super().__init__(message)


class RunLocked(RunError):
    """Another process works on that run."""


class RunPushed(RunLocked):
    """The run was pushed, and goes on where it is pulled; or another machine has pulled it already."""


class LeaseHeld(RunLocked):
    """Another process works on the run, and renews its lease. `host`, `pid`: that process. `renewed`: the lease's
    token and the number of its renewals, as they were then."""

    def __init__(self, message: str, *, host: str, pid: int, renewed: tuple[int, int]) -> None:
        self.host, self.pid, self.renewed = host, pid, renewed
        super().__init__(message)


class LeaseLost(RunLocked):
    """This process was stopped or cut off for so long that another one took over its run, which has ended here.
    `host`, `pid`: the process that took it; "" and 0 if the run was deleted, or nobody has taken it yet."""

    def __init__(self, message: str, *, run_id: str, host: str, pid: int) -> None:
        self.lost_run, self.host, self.pid = run_id, host, pid
        super().__init__(message)


class UsedAfterFork(RunError):
    """A forked child used a `Runtime`, a store or a run of the process that it was forked from."""


class RuntimeClosed(RunError):
    """A `Runtime` was used after it was closed, or after the event loop on which it was opened had ended."""


class StoreError(RunError):
    """The database cannot be used."""


class PlanMismatch(RunError):
    """The plan does not fit the workflow that runs under it."""


class BranchReleased(RunError):
    """A branch was used after the end of its fork or run."""


class StateLost(RunError):
    """A world with unsealed changes is gone."""


class NotAwaited(RunError):
    """The workflow returned while steps that nobody ever awaited were running. The steps are stopped."""


class Diverged(RunError):
    """A step that was performed, and must not be repeated, is reached again in another state."""


class EffectInDoubt(RunError):
    """An irreversible step was begun and did not end. Record its outcome with `ramify approve`."""

    def __init__(self, message: str, *, run_id: str, key: str) -> None:
        self.doubtful_run, self.key = run_id, key
        super().__init__(message)


class CompensationFailed(RunError):
    """A compensate hook raised; the cause is chained. The effect is not undone."""

    def __init__(self, message: str, *, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(message)


class EffectUndone(RunError):
    """A branch cannot be adopted: one of its effects was undone, so its recorded results are no longer true."""


class EffectRefused(RunError):
    """An irreversible step was called on a branch that may be discarded."""


class WrongReuse(RunError):
    """A reuse check recomputed a reused result and got another one."""


class HiddenWrites(RunError):
    """A step whose code writes no files ran in a separate world, and changed files nevertheless. It is run again on
    its branch."""


class Unrecoverable(RunError):
    """A lost snapshot cannot be recomputed from its lineage."""


class NestedWorkflow(RunError):
    """A workflow was called in a step or a LangGraph node, or was declared for another workspace than the run's."""


class BadArguments(RunError, TypeError):
    """A workflow or step was called with arguments that it does not take."""


class TargetNotFound(RunError):
    """The file, module or name of a workflow does not exist."""


class TargetBroken(RunError):
    """The file or module of a workflow raised while it was loaded. `__cause__`: what it raised."""

    broken_target = True  # for the command line, which shows the user's part of the stack


class CommandFailed(RunError):
    """A command under `check=True` did not exit with 0. `result`: what it returned."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        tail = (result.stderr or result.stdout).strip()[-2000:]
        how = "timed out" if result.timed_out else f"exited with {result.exit_code}"
        super().__init__(f"{result.command!r} {how}" + (f":\n{tail}" if tail else ""))


def error_text(error: BaseException) -> str:
    """Return the class and the message of an error, which may be of a user's class that cannot print itself."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  the user's own code must not hide the error
        said = "<exception str() failed>"  # as Python's tracebacks
    return f"{type(error).__name__}: {said}"
