"""The statistics of a scheduler inside vLLM as the gateway's counters."""

from __future__ import annotations

import json
from pathlib import Path

from ramify.serving.gateway.records.metrics import Metrics
from ramify.serving.vllm_plugin.reports import SchedulerTotals


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


def test_no_engine_counters_without_such_an_engine() -> None:
    metrics = Metrics()
    metrics.follow({})
    assert not [name for name in figures(metrics) if name.startswith("ramify_engine_preempt")]
