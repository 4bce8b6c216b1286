"""`sys.exit()` in a workflow or a step: it ends the program, except in a process that works on the runs of others.

There it would end the event loop, and with it the work on all runs of the process.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType

from ramify.runtime.user_code.worker_threads import Abandoned

_works_for_others: ContextVar[bool] = ContextVar("ramify_works_for_others", default=False)


class ProgramEnded(Exception):
    """The user's code ended the program, which here works on runs of others as well."""


def work_for_others() -> None:
    """From now on, `sys.exit()` in a run of this context, and of tasks that it starts, is a `ProgramEnded`."""
    _works_for_others.set(True)


class ExitsOfRuns:
    """Raises `ProgramEnded` in place of a `SystemExit` that the user's code raised, after `work_for_others`."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SystemExit) and not isinstance(error, Abandoned) and _works_for_others.get():
            raise ProgramEnded(f"it ended the program ({error!r}): raise an error instead") from error
