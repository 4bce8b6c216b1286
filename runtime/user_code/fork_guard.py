"""Guard against `os.fork` in user code: a forked child must not continue as a second copy of the run.

`os.fork` in a step copies the whole process, including the run and its event loop. The copy would finish the step,
write to the journal, and run other steps that wait on the same loop. So a child is ended as soon as it leaves the
step's own code: when it returns, raises, or waits on the event loop. What it does before that is not affected, nor is
a child that ends itself (`os._exit`, every `multiprocessing.Process`).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Coroutine, Generator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

FAILED = 1
_INTERRUPTED = 130


class InOneProcess:
    """Awaits a user's coroutine, only in the process that began it. `what`: names the coroutine in messages."""

    def __init__(self, work: Coroutine[Any, Any, T], what: str) -> None:
        self._work, self._what = work, what

    def __await__(self) -> Generator[Any, Any, Any]:
        owner, work = os.getpid(), self._work
        value: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                awaited = work.send(value) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                end_child(owner, self._what)
                return end.value
            except BaseException as error:
                end_child(owner, self._what, error)
                raise
            end_child(owner, self._what)
            value = thrown = None
            try:
                value = yield awaited
            except GeneratorExit:  # it is garbage-collected, perhaps in a child, which may continue
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001  # the coroutine's own to handle
                thrown = error
            end_child(owner, self._what)


def end_child(owner: int, what: str, error: BaseException | None = None) -> None:
    """End this process if it was forked from `owner`, the process of the run. Prints the reason to standard error."""
    if os.getpid() != owner:
        _end(what, error)


def _end(what: str, error: BaseException | None) -> NoReturn:
    status = FAILED
    try:
        if isinstance(error, SystemExit):
            status = _status(error)
        elif isinstance(error, KeyboardInterrupt):
            status = _INTERRUPTED
        else:
            if error is not None:
                traceback.print_exception(error)
            print(
                f"ramify: process {os.getpid()}, which {what} forked, left that code and was ended: a run continues "
                "in one process only. End a forked child inside the step (os._exit), or use multiprocessing or "
                "subprocess",
                file=sys.stderr,
            )
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status)


def _status(error: SystemExit) -> int:
    """Return the exit status that Python itself would use for this `SystemExit`."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return FAILED
