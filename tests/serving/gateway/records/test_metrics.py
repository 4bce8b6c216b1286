"""The statistics of a scheduler inside vLLM as the gateway's counters."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ramify.serving.gateway.records.call_records import Records
from ramify.serving.gateway.records.calls import Outcome
from ramify.serving.gateway.records.metrics import Metrics
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.vllm_plugin.messages_and_reports import SchedulerTotals


def figures(metrics: Metrics) -> dict[str, float]:
    lines = metrics.text(running=0, waiting=0, up=[True], infeasible={}).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_engine_totals_become_counters_across_restarts(tmp_path: Path) -> None:
    report = tmp_path / "engine-0.json"
    metrics = Metrics()
    metrics.follow({0: report})
    name = 'ramify_engine_preemptions_total{replica="0"}'
    assert figures(metrics)[name] == 0
    for preemptions, seconds, expected in ((3, 1.5, (3, 1.5)), (5, 2.0, (5, 2.0)), (1, 0.5, (6, 2.5))):
        totals = SchedulerTotals(preemptions=preemptions, preempted_s=seconds)
        report.write_text(json.dumps({field: getattr(totals, field) for field in totals.__slots__}))
        seen = figures(metrics)
        assert (seen[name], seen['ramify_engine_preempted_seconds_total{replica="0"}']) == expected
    report.write_text("not JSON")
    assert figures(metrics)[name] == 6


def test_the_ranks_of_an_engine_count_together(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.follow({0: tmp_path / "e.json"})
    for name, refusals in (("e.json", 2), ("e.json.dp1", 3), ("e.json.dp1.new", 100)):
        (tmp_path / name).write_text(json.dumps(asdict(SchedulerTotals(refusals=refusals))))
    assert figures(metrics)['ramify_engine_refusals_total{replica="0"}'] == 5


def test_no_engine_counters_without_such_an_engine() -> None:
    metrics = Metrics()
    metrics.follow({})
    assert not [name for name in figures(metrics) if name.startswith("ramify_engine_preempt")]


def test_the_quality_of_experience_of_whole_streams_is_a_histogram_by_length() -> None:
    metrics, now = Metrics(), [0.0]
    book = Records(lambda: now[0], lambda: now[0], keep=10)
    stream = SLOTags(slo_class="stream", slo_ttft_s=1.0, slo_tbt_s=0.5)
    # Equations 1 to 3: on time; each 2 s late; cut, which says nothing of what the reader would have had; no stream.
    for tags, times, outcome in (
        (stream, [0.5, 0.6, 0.7], Outcome.DONE),
        (stream, [3.0, 3.1, 3.2], Outcome.DONE),
        (stream, [0.5] * 40, Outcome.DONE),
        (stream, [9.0], Outcome.GONE),
        (SLOTags(), [9.0], Outcome.DONE),
    ):
        now[0] = 0.0
        call = book.open("/", tags)
        call.enter(0.0, 0)
        for at in times:
            call.token(at)
        now[0] = 10.0
        book.close(call, outcome)
        metrics.ended(call)
    seen = figures(metrics)
    assert seen['ramify_qoe_count{tokens="1-31"}'] == 2
    assert seen['ramify_qoe_sum{tokens="1-31"}'] == pytest.approx(1 + 1 - 6 / 7.5)
    assert seen['ramify_qoe_bucket{le="0.25",tokens="1-31"}'] == 1
    assert seen['ramify_qoe_sum{tokens="32-255"}'] == 1
