"""Keep a run in its own process: a child that the user's code forks must not go on as a second copy of the run.

`os.fork` in a step copies the whole process, this run and its event loop included. The copy would go on where the
step goes on: finish it, write to the journal, run the code of other steps that wait on the same loop. So the child is
ended where it leaves the step's own code, by returning, raising, or waiting on the event loop. What it does before
that, and a child that ends itself (`os._exit`, every `multiprocessing.Process`), is not affected.
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
    """Awaits a coroutine of the user's, in the process that began it only. `what` names it in what a child says."""

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
            except GeneratorExit:  # it is collected, in a child perhaps, which is free to go on
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001  # the coroutine's own to handle
                thrown = error
            end_child(owner, self._what)


def end_child(owner: int, what: str, error: BaseException | None = None) -> None:
    """End this process if it was forked from `owner`, the one whose run it is; say why on standard error."""
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
                f"ramify: process {os.getpid()}, which {what} forked, left that code and was ended: a run goes on "
                "in one process only. End a forked child inside the step (os._exit), or use multiprocessing or "
                "subprocess",
                file=sys.stderr,
            )
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status)


def _status(error: SystemExit) -> int:
    """As Python itself ends a process by it."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return FAILED
