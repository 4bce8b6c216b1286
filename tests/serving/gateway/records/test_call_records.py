"""Records of calls and compounds, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ramify.serving.errors import BadTags
from ramify.serving.gateway.records.call_records import Records
from ramify.serving.gateway.records.calls import Call, Outcome
from ramify.serving.policy.types import StepModel
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.qoe import READING_TBT_S


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now

    def unix(self) -> float:
        return self.now + 1_000_000


def records(keep: int = 100) -> tuple[Records, Clock]:
    clock = Clock()
    return Records(clock, clock.unix, keep), clock


def test_compound_deadline_counts_from_the_first_call() -> None:
    book, clock = records()
    first = book.open("/", SLOTags(compound_id="run", compound_deadline_s=10.0))
    clock.now += 4
    again = book.open("/", SLOTags(compound_id="run", compound_deadline_s=10.0, slo_deadline_s=100.0))
    own = book.open("/", SLOTags(compound_id="run", slo_deadline_s=2.0))
    assert (first.deadline, again.deadline, own.deadline) == (60.0, 60.0, 56.0)
    assert again.ledger(clock.now).deadline_s == 6.0


def test_wall_clock_deadline_is_converted_to_our_clock() -> None:
    book, clock = records()
    assert book.open("/", SLOTags(compound_deadline_at=clock.unix() + 7)).deadline == 57.0
    assert book.open("/", SLOTags(compound_id="run", compound_deadline_at=clock.unix() + 9)).deadline == 59.0
    assert book.open("/", SLOTags(compound_id="run")).deadline == 59.0


def test_view_that_the_policy_gets() -> None:
    book, _ = records()
    latency = book.open("/", SLOTags(slo_ttft_s=1.0, slo_waiting_s=5.0)).view()
    assert (latency.ttft, latency.admit_by, latency.slo_class) == (51.0, 55.0, "latency")
    assert book.open("/", SLOTags()).view().slo_class == "best_effort"
    assert book.open("/", SLOTags(slo_deadline_s=1.0)).view().slo_class == "deadline"
    stage = book.open("/", SLOTags(compound_id="run", compound_stage=2)).view()
    assert stage.compound is not None
    assert (stage.slo_class, stage.compound.id, stage.compound.stage) == ("compound", "run", 2)


def run(book: Records, clock: Clock, tags: SLOTags, queue: float, token_times: list[float], end: float) -> Call:
    call = book.open("/", tags)
    start = clock.now
    clock.now = start + queue
    call.enter(clock.now, 0)
    for at in token_times:
        call.token(start + at)
    clock.now = start + end
    book.close(call, Outcome.DONE)
    return call


def test_ledger_shows_where_the_time_went() -> None:
    book, clock = records()
    call = run(book, clock, SLOTags(slo_deadline_s=5.0), queue=1.0, token_times=[2.0, 3.0], end=4.0)
    ledger = call.ledger(clock.now)
    assert (ledger.queue_s, ledger.first_token_s, ledger.total_s, ledger.met) == (1.0, 2.0, 4.0, True)
    whole = run(book, clock, SLOTags(), queue=1.0, token_times=[], end=4.0).ledger(clock.now)
    assert (whole.first_token_s, whole.met) == (4.0, None)


def test_each_kind_of_slo_can_be_missed() -> None:
    book, clock = records()
    assert run(book, clock, SLOTags(slo_deadline_s=3.0), 0, [1.0], 3.5).met() is False
    assert run(book, clock, SLOTags(slo_ttft_s=1.0), 0, [1.5], 2.0).met() is False
    assert run(book, clock, SLOTags(slo_ttft_s=1.0), 0, [0.5, 9.0], 9.0).met() is True
    assert run(book, clock, SLOTags(slo_ttft_s=1.0, slo_tbt_s=0.5), 0, [1.0, 1.5, 2.0], 2.0).met() is True
    assert run(book, clock, SLOTags(slo_ttft_s=1.0, slo_tbt_s=0.5), 0, [1.0, 1.6, 2.0], 2.0).met() is False
    assert run(book, clock, SLOTags(slo_tbt_s=0.5), 0, [4.0, 4.5], 4.5).met() is True
    failed = book.open("/", SLOTags(slo_deadline_s=9.0))
    book.close(failed, Outcome.FAILED)
    assert failed.met() is False


def test_compound_is_in_time_if_its_last_stage_is() -> None:
    book, clock = records()
    early = SLOTags(compound_id="run", compound_deadline_s=10.0)
    run(book, clock, early, 0, [1.0], 2.0)

    def compound() -> dict[str, object]:
        return book.snapshot("run")["compounds"][0]  # type: ignore[index, no-any-return]

    assert compound()["met"] is None, "its last stage has not come"
    run(book, clock, SLOTags(compound_id="run", compound_last=1), 0, [1.0], 3.0)
    assert compound() == {
        "id": "run",
        "calls": 2,
        "done": 2,
        "open": 0,
        "first_at": 1_000_050.0,
        "total_s": 5.0,
        "deadline_s": 10.0,
        "met": True,
        "left_s": 5.0,
        "feasible": None,
        "spent": {"queue_s": 0.0, "prefill_s": 2.0, "decode_s": 3.0, "paused_s": 0.0, "preempted_s": 0.0},
        "qoe": None,
    }
    book.close(book.open("/", SLOTags(compound_id="run", compound_last=1)), Outcome.FAILED)
    assert compound()["met"] is False, "its last call failed, if in time"
    run(book, clock, SLOTags(compound_id="run", compound_last=1), 0, [1.0], 1.0)
    assert compound()["met"] is True, "it was asked again"
    run(book, clock, SLOTags(compound_id="run"), 0, [1.0], 6.0)
    assert compound()["met"] is False


def test_memory_is_bounded_and_only_the_first_end_counts() -> None:
    book, clock = records(keep=3)
    calls = [book.open("/", SLOTags(compound_id=f"run-{i}")) for i in range(10)]
    book.close(calls[9], Outcome.DONE)
    clock.now += 5
    book.close(calls[9], Outcome.GONE)
    kept = book.snapshot()
    assert [r["tags"]["compound_id"] for r in kept["requests"]] == ["run-7", "run-8", "run-9"]  # type: ignore[attr-defined]
    assert [c["id"] for c in kept["compounds"]] == ["run-7", "run-8", "run-9"]  # type: ignore[attr-defined]
    assert (calls[9].outcome, calls[9].ended) == (Outcome.DONE, 50.0)


def test_long_running_call_can_be_cancelled_after_many_others() -> None:
    book, _ = records(keep=3)
    long = book.open("/", SLOTags(fork_group="g"))
    for i in range(10):
        book.close(book.open("/", SLOTags(compound_id=f"run-{i}")), Outcome.DONE)
    assert book.open_calls(compound_id=None, fork_group="g") == [long]
    book.close(long, Outcome.ABORTED)
    assert book.open_calls(compound_id=None, fork_group="g") == []


def test_feasibility_is_known_while_a_call_runs() -> None:
    book, clock = records()
    step = StepModel(100.0, 0.0, 0.0, 10.0)  # ten tokens a second, and a hundred of a prompt

    def feasible(tags: SLOTags, at: Sequence[float] = (), *, now: float, thoughts: int = 0, **more: Any) -> Any:
        clock.now = 50.0
        call = book.open("/", tags, prompt_tokens=100, **more)
        call.enter(50.0, 0)
        for number, moment in enumerate(at):
            call.token(moment, thought=number < thoughts)
        clock.now = now
        return call.feasible(now, step)

    short = LengthSketch.from_wire([10.0] * len(LEVELS))
    assert feasible(SLOTags(), now=999.0) is None, "it was promised nothing"
    due = SLOTags(slo_deadline_s=5.0)
    assert feasible(due, now=52.9, sketch=short) and not feasible(due, now=53.1, sketch=short)
    assert feasible(due, now=53.6, sketch=short, max_tokens=2), "where it is cut sooner"
    assert feasible(due, [51.0, 52.0], now=54.1, sketch=short), "two of its ten tokens are there, and its prompt"
    stream = SLOTags(slo_ttft_s=2.0, slo_tbt_s=1.0)
    assert feasible(stream, now=50.9) and not feasible(stream, now=51.1)
    assert feasible(stream, [51.9, 52.9], now=53.0) and not feasible(stream, [51.9, 53.1], now=53.2)
    think = SLOTags(slo_think_s=4.0, slo_tbt_s=1.0)
    assert feasible(think, [52.0, 53.9], now=54.0, thoughts=1)
    assert not feasible(think, [52.0, 54.1], now=54.2, thoughts=1)
    assert not feasible(think, [52.0], now=54.1, thoughts=1)
    assert book.infeasible(lambda _: step)["latency"] > 0


def test_workflow_is_feasible_only_if_all_its_calls_are() -> None:
    book, clock = records()
    run(book, clock, SLOTags(compound_id="run", compound_deadline_s=10.0), 0, [1.0], 2.0)
    book.open("/", SLOTags(compound_id="run"))

    def compound() -> Any:
        return book.snapshot("run")["compounds"][0]  # type: ignore[index]

    assert (compound()["left_s"], compound()["feasible"]) == (8.0, True)
    clock.now = 60.0
    assert (compound()["left_s"], compound()["feasible"]) == (0.0, False)


def test_a_stream_is_soft_and_has_its_quality_of_experience_in_the_ledger() -> None:
    book, clock = records()
    tags = SLOTags(slo_class="stream", slo_ttft_s=1.0, slo_tbt_s=0.5, compound_id="run")
    smooth = run(book, clock, tags, 0.1, [0.5, 0.6, 0.7], 1.0)
    late = run(book, clock, tags, 0.1, [3.0, 3.1, 3.2], 3.5)
    view = late.view()
    assert view.reading is not None
    assert (view.slo_class, view.ttft, view.tbt, view.reading.tokens) == ("stream", None, None, 3)
    assert (smooth.met(), late.met()) == (None, None)
    worst = late.ledger(clock.now).qoe
    assert (smooth.ledger(clock.now).qoe, worst) == (1.0, pytest.approx(1 - 6 / 7.5))
    assert book.snapshot()["compounds"][0]["qoe"] == pytest.approx((1 + 1 - 6 / 7.5) / 2)  # type: ignore[index]
    other = run(book, clock, SLOTags(), 0.1, [0.5], 1.0)
    assert (other.ledger(clock.now).qoe, other.view().reading) == (None, None)


def test_a_reader_whose_speed_nobody_knows_gets_the_tables_mean() -> None:
    book, clock = records()
    reading = book.open("/", SLOTags(slo_class="stream"), prompt_tokens=10_000).view().reading
    assert reading is not None
    assert (reading.first_due, reading.tbt_s) == (clock.now + 2.0, READING_TBT_S)
    for too_fast in (0.0, 5e-324):  # to such a reader any wait is endless, and no sum over it is a number
        with pytest.raises(BadTags, match="slo_tbt_s"):
            SLOTags(slo_class="stream", slo_tbt_s=too_fast)
        with pytest.raises(BadTags, match="slo_tbt_s"):
            SLOTags(slo_pace=1, slo_tbt_s=too_fast)


@pytest.mark.parametrize("whole", [True, False])
def test_a_reader_reads_each_token_of_an_event_and_of_an_answer_that_comes_whole(whole: bool) -> None:
    book, clock = records()
    begin = clock.now
    call = book.open("/", SLOTags(slo_class="stream", slo_ttft_s=1.0, slo_tbt_s=0.5))
    call.enter(begin, 0)
    clock.now = begin + 5
    if whole:
        call.track.whole(clock.now, 4)
    else:
        call.token(clock.now, read=4)
    book.close(call, Outcome.DONE)
    assert call.ledger(clock.now).qoe == pytest.approx(1 - 16 / 19)


def test_a_client_with_many_runs_does_not_crowd_out_the_run_of_another() -> None:
    book, clock = records(keep=4)
    first = book.open("/", SLOTags(compound_id="a/run", compound_deadline_s=10.0), client="a")
    for i in range(10):
        book.close(book.open("/", SLOTags(compound_id=f"b/{i}"), client="b"), Outcome.DONE)
    clock.now += 4
    second = book.open("/", SLOTags(compound_id="a/run", compound_deadline_s=10.0), client="a")
    assert first.deadline is not None and second.deadline == first.deadline
    kept: Any = book.snapshot(client="a")
    assert [one["tags"]["compound_id"] for one in kept["requests"]] == ["run", "run"]
    assert [one["calls"] for one in kept["compounds"]] == [2]
