"""Calls that the workflow cancels: recorded, and in a resume cancelled again instead of begun.

Otherwise a step that a timeout ended, or the slower of two, could be the faster one the next time, and the workflow
would take another way than the one that it took. So is a call that was cancelled while its result was being recorded:
the result stands, and the workflow was told that the call is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from ramify.runtime.journal.failures import RaisedBy
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import CANCELLED, STANDS, OpRecord, OpStatus
from ramify.runtime.user_code.workflow_tasks import LEFT

_SLACK, _LEAST_S = 1.5, 2.0
"""A call that an earlier process cancelled N seconds after its beginning is begun after all if it is not cancelled
within _SLACK * N + _LEAST_S seconds: the code may have changed since."""
_SILENT_S = 5.0  # after how long observers are told that it waits


async def until_cancelled_again(
    journal: Journal, key: str, what: str, first: Callable[[], Awaitable[None]] | None = None
) -> None:
    """If an earlier process cancelled this call, wait until it is cancelled again. Returns if none did, or if nobody
    cancels it in time. `what`: the call, for observers. `first`: is awaited before that wait."""
    cancelled_s = journal.cancelled_s(key)
    if cancelled_s is None:
        return
    if first is not None:
        await first()
    left = _SLACK * cancelled_s + _LEAST_S - journal.age_s()
    journal.await_cancels += 1  # so the run does not stop for a person before that
    try:
        if left > _SILENT_S:
            await pause(_SILENT_S)
            left -= _SILENT_S
            journal.notice(
                f"an earlier process cancelled {what} after {cancelled_s:.0f} s: it waits for the same, and begins "
                f"in {left:.0f} s if it is not"
            )
        await pause(max(0.0, left))
    finally:
        journal.await_cancels -= 1


async def pause(seconds: float) -> None:
    """Sleep. Unlike `asyncio.sleep`, it is not taken for a timer of the workflow that could lead to a call."""
    over = asyncio.get_running_loop().create_future()
    timer = asyncio.get_running_loop().call_later(seconds, _end, over)
    try:
        await over
    finally:
        timer.cancel()


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)


@asynccontextmanager
async def cancelled_as_before(
    journal: Journal,
    key: str,
    what: str,
    row: Callable[[], OpRecord],
    first: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[None]:
    """In the block an operation is performed, or served; it is left in the result's turn. If an earlier process
    cancelled the operation, wait until it is cancelled again: before the block, or after it if the operation had been
    done by then, so that its branch comes into the state after it. A cancellation is recorded.

    what: the operation, for observers. row: returns a row for it, which ends now.
    first: is awaited before the wait, if that is before the block.
    """
    done = journal.knows(key)
    try:
        async with journal.turns.of(key):  # what was recorded after the cancellation waits for it
            if not done:
                await until_cancelled_again(journal, key, what, first)
            yield
            if done:
                await until_cancelled_again(journal, key, what)
    except asyncio.CancelledError as error:
        await record_cancelled(journal, row(), error)
        raise


async def record_cancelled(
    journal: Journal, row: OpRecord, error: asyncio.CancelledError | None, *, had_result: bool | None = None
) -> None:
    """Record that the workflow cancelled the call of this row. Does nothing if the run itself is being stopped.

    error: how the call was told. None: the workflow left it, as it had enough; that stands, unless the run fails
        and called nothing more.
    had_result: whether an earlier process recorded the result of the call. None: the row's key tells.
    """
    if journal.unwinds or journal.stopped is not None or journal.is_over or (error and LEFT in error.args):
        return
    if journal.cancelled_s(row.key) is None:
        if journal.was_recorded(row.key) if had_result is None else had_result:
            return  # an earlier process got its result
        attrs = {**row.attrs, STANDS: "yes", CANCELLED: f"{journal.age_s():.3f}"}
        said = "CancelledError: the workflow cancelled it"
        await journal.record(replace(row, status=OpStatus.FAILED, error=said, summary="cancelled", attrs=attrs))
    if error is None:
        journal.followers.left(row.key)
    else:
        journal.followers.told(error, RaisedBy(row.key, row.step, row.branch))
