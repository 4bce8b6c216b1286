"""Which failures a run ended with, and which rows of earlier processes stand."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ramify.compiler.plan import OpId, OpKind
from ramify.runtime.journal.failures import Followers, RaisedBy, standing_failures
from ramify.runtime.journal.recorded_errors import RAISED
from ramify.runtime.records import ROOT, STANDS, OpRecord, OpStatus, RunId, checkpoint_id


def failed(key: str, seq: int, at: float, **attrs: str) -> OpRecord:
    blank = OpRecord(RunId("r"), seq, key, OpId("o1"), OpKind.RUN, ROOT, OpStatus.FAILED)
    return replace(blank, started_at=at, ended_at=at, attrs={RAISED: "{}", **attrs})


def test_marked_rows_stand_until_the_run_has_ended_with_them() -> None:
    rows = [failed("a", 1, 1.0, **{STANDS: "yes"}), failed("b", 2, 2.0, **{STANDS: "no"})]
    assert set(standing_failures(rows, (), (), all_caught=False)) == {"a"}
    again = failed("b", 3, 3.0, **{STANDS: "yes"})
    assert set(standing_failures([*rows, again], (), (), all_caught=False)) == {"a", "b"}
    done = replace(again, seq=4, status=OpStatus.DONE, attrs={})
    assert set(standing_failures([*rows, again, done], (), (), all_caught=False)) == {"a"}


def test_rows_before_a_checkpoint_to_which_the_run_went_back_do_not_stand() -> None:
    at = replace(failed("s", 1, 1.0), status=OpStatus.DONE, attrs={})
    back = replace(at, seq=3, key="restore|3", kind=OpKind.RESTORE, attrs={"to": checkpoint_id(RunId("r"), 1)})
    mine = failed("a", 2, 2.0, **{STANDS: "yes"})
    assert set(standing_failures([at, mine], (), (), all_caught=False)) == {"a"}
    assert standing_failures([at, mine, back], (), (), all_caught=False) == {}


def test_old_rows_stand_if_something_began_after_them() -> None:
    rows = [failed("a", 1, 1.0), failed("b", 2, 2.0)]
    assert set(standing_failures(rows, (), (), all_caught=False)) == {"a"}
    assert set(standing_failures(rows, (), (), all_caught=True)) == {"a", "b"}


def told(followers: Followers, key: str, kind: type[Exception] = ValueError) -> Exception:
    error = kind(key)
    followers.told(error, RaisedBy(key, None, ROOT))
    return error


@pytest.mark.parametrize("how", ["itself", "from", "context", "group", "unchained"])
async def test_the_error_of_the_run_tells_what_ended_it(how: str) -> None:
    followers = Followers()
    followers.called("a")
    first = told(followers, "a")
    followers.called("b")
    last = told(followers, "b")
    error: BaseException = {"itself": last, "group": ExceptionGroup("", [RuntimeError(), last])}.get(
        how, RuntimeError()
    )
    if how == "from":
        error.__cause__ = last
    if how == "context":
        error.__context__ = last
        last.__context__ = first  # caught before: the nearest counts
    assert set(followers.ended_with(error)) == {"b"}
    assert followers.of("a") == {"b"}


async def test_a_task_that_waits_for_its_own_operations_only_follows_from_no_other() -> None:
    followers = Followers()
    returns = asyncio.Event()

    async def customer() -> None:
        followers.called("mine 1")
        await returns.wait()
        followers.returned()
        followers.called("mine 2")
        await asyncio.sleep(0)  # anything may have told it of the failure meanwhile
        followers.called("mine 3")

    task = asyncio.create_task(customer())
    await asyncio.sleep(0)
    told(followers, "other")
    returns.set()
    await task
    assert followers.of("other") == {"mine 3"}
