"""Let a workflow wait for a time (`ramify.sleep`): the time at which it ends is recorded when it begins.

A sleep has two journal rows. The first, with the status BEGUN, says until when it lasts; a process that is started
meanwhile, or later, waits for the rest. The second has the status DONE, and a number like every other result: so a
resume hands the end of a sleep out in the same order among the results of other tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial

from ramify.compiler.plan import OpId, OpKind
from ramify.runtime.codec import codec
from ramify.runtime.execution.run import Run, RunScope, go_where_sealed_before, new_row, seal_before
from ramify.runtime.journal.cancelled_calls import cancelled_as_before, pause
from ramify.runtime.journal.recorded_order import UNTIL
from ramify.runtime.records import OpRecord, OpStatus

_LONGEST_S = 30.0
"""Seconds between two looks at the clock: the timers of an event loop do not count while a machine is suspended."""
_OP = OpId("sleep")
"""The operation of every sleep. Sleeps are told apart by their duration and order, not by their place in the code."""


def begin_sleeping(scope: RunScope, duration_s: float) -> Awaitable[None]:
    """Take the sleep's key now, in program order, and return the awaitable that waits."""
    return _sleep(scope, scope.run.journal.key(scope.branch.path, _OP, repr(duration_s), acts=False), duration_s)


async def _sleep(scope: RunScope, key: str, duration_s: float) -> None:
    run, began, task = scope.run, scope.run.clock(), asyncio.current_task()
    assert task is not None  # an awaitable runs in a task

    def row(status: OpStatus) -> OpRecord:
        said = f"{'slept' if status is OpStatus.DONE else 'sleeps'} {duration_s:g} s"
        return replace(_row(scope, key, duration_s), status=status, started_at=began, summary=said)

    what, first = f"a sleep of {duration_s:g} s", partial(go_where_sealed_before, scope, key)
    run.sleeping.add(task)
    try:
        async with cancelled_as_before(run.journal, key, what, lambda: row(OpStatus.FAILED), first):
            await first()
            if run.journal.served(key) is not None:
                return
            run.journal.refuse_when_stopped()
            until = run.journal.sleeps_until(key)
            async with run.busy():
                await _seal(scope, key)
                if until is None:
                    until = began + duration_s
                    await run.journal.record(replace(row(OpStatus.BEGUN), attrs={UNTIL: repr(until)}))
            await _wait(run, min(until, run.clock() + duration_s))
            async with run.busy():
                await run.journal.record(row(OpStatus.DONE))
    finally:
        run.sleeping.discard(task)


async def _seal(scope: RunScope, key: str) -> None:
    """Seal the branch's state, so that no finished step has to run again if the process ends during the sleep. Seal
    nothing while a step works on the branch, or is about to: the sleep must not wait for that step."""
    lock = scope.branch.lock
    if not lock.locked() and not getattr(lock, "_waiters", None):  # who waits gets the lock first
        async with lock:
            await seal_before(scope, key)


async def _wait(run: Run, until: float) -> None:
    """Return at that time by the run's clock."""
    loop = asyncio.get_running_loop()
    latest = loop.time() + until - run.clock()  # if the clock is set back meanwhile
    while (left := min(until - run.clock(), latest - loop.time())) > 0:
        await pause(min(left, _LONGEST_S))


def _row(scope: RunScope, key: str, duration_s: float) -> OpRecord:
    nothing = codec.encode(None)
    return new_row(
        scope,
        OpKind.SLEEP,
        _OP,
        key,
        args_digest=codec.digest_text(codec.encode(duration_s)),
        result_json=nothing,
        result_digest=codec.digest_text(nothing),
    )
