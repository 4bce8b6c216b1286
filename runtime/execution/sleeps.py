"""Let a workflow wait for a time (`ramify.sleep`): the time at which it ends is recorded when it begins.

A sleep has two journal rows. The first, with the status BEGUN, says until when it lasts; a process that is started
meanwhile, or later, waits for the rest. The second has the status DONE, and a number like every other result: so a
resume hands the end of a sleep out in the same order among the results of other tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from ramify.compiler.plan import OpId, OpKind
from ramify.runtime.codec import codec
from ramify.runtime.execution.run import RunScope, new_row, seal_before
from ramify.runtime.journal.cancelled_calls import cancelled_as_before, pause
from ramify.runtime.journal.recorded_run import UNTIL
from ramify.runtime.records import OpRecord, OpStatus
from ramify.runtime.user_code.call_sites import CallSite

_LONGEST_S = 30.0
"""Seconds between two looks at the clock: the timers of an event loop do not count while a machine is suspended."""


def begin_sleeping(scope: RunScope, duration_s: float, site: CallSite) -> Awaitable[None]:
    """Take the sleep's key now, in program order, and return the awaitable that waits."""
    op = scope.run.op(OpKind.SLEEP, site)
    key = scope.run.journal.key(scope.branch.path, op.id, "sleep", f"{duration_s:g}")
    return _sleep(scope, op.id, key, duration_s)


async def _sleep(scope: RunScope, op: OpId, key: str, duration_s: float) -> None:
    run, began = scope.run, scope.run.clock()

    def row(status: OpStatus) -> OpRecord:
        said = f"{duration_s:g} s"
        return replace(_row(scope, op, key, duration_s), status=status, started_at=began, summary=said)

    async with cancelled_as_before(run.journal, key, f"a sleep of {duration_s:g} s", lambda: row(OpStatus.FAILED)):
        if run.journal.served(key) is not None:
            return
        run.journal.refuse_when_stopped()
        until = run.journal.sleeps_until(key)
        if until is None:
            until = began + duration_s
            async with run.busy():
                async with scope.branch.lock:  # it may be long: seal, so that no finished step has to run again
                    await seal_before(scope, key)
                await run.journal.record(replace(row(OpStatus.BEGUN), attrs={UNTIL: repr(until)}))
        await _wait(scope, min(until, run.clock() + duration_s))
        async with run.busy():
            await run.journal.record(row(OpStatus.DONE))


async def _wait(scope: RunScope, until: float) -> None:
    """Return at that time by the run's clock. Meanwhile the run does not stop for a person."""
    run = scope.run
    run.asleep += 1
    try:
        while (left := until - run.clock()) > 0:
            await pause(min(left, _LONGEST_S))
    finally:
        run.asleep -= 1


def _row(scope: RunScope, op: OpId, key: str, duration_s: float) -> OpRecord:
    nothing = codec.encode(None)
    return new_row(
        scope,
        OpKind.SLEEP,
        op,
        key,
        args_digest=codec.digest_text(codec.encode(duration_s)),
        result_json=nothing,
        result_digest=codec.digest_text(nothing),
    )
