"""Which sleeps of earlier processes go on, by the rows of a journal."""

from __future__ import annotations

from ramify.compiler.plan import OpId, OpKind
from ramify.runtime.journal.recorded_order import UNTIL, ends_of_sleeps
from ramify.runtime.records import ROOT, OpRecord, OpStatus, RunId, checkpoint_id


def row(seq: int, key: str, status: OpStatus, kind: OpKind = OpKind.SLEEP, **attrs: str) -> OpRecord:
    return OpRecord(RunId("r"), seq, key, OpId("o"), kind, ROOT, status, attrs=attrs)


def begun(seq: int, key: str, until: str = "7.5") -> OpRecord:
    return row(seq, key, OpStatus.BEGUN, **{UNTIL: until})


def test_a_sleep_that_is_over_does_not_go_on() -> None:
    rows = [begun(1, "going on"), begun(2, "done"), begun(3, "cancelled"), row(4, "done", OpStatus.DONE)]
    assert ends_of_sleeps([*rows, row(5, "cancelled", OpStatus.FAILED)]) == {"going on": 7.5}
    assert ends_of_sleeps([begun(1, "again"), row(2, "again", OpStatus.FAILED), begun(3, "again", "9")]) == {
        "again": 9
    }


def test_a_run_that_went_back_keeps_the_sleeps_that_were_begun_before() -> None:
    state = row(2, "s", OpStatus.DONE, OpKind.RUN)
    back = row(4, "restore|4", OpStatus.DONE, OpKind.RESTORE, to=checkpoint_id(RunId("r"), 2))
    assert ends_of_sleeps([begun(1, "before"), state, begun(3, "after"), back]) == {"before": 7.5}
    assert ends_of_sleeps([begun(1, "a"), state, begun(3, "b"), back, begun(5, "b", "9")]) == {"a": 7.5, "b": 9}
