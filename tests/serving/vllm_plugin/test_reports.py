"""Totals of preemptions, pauses and refusals."""

from __future__ import annotations

import json
from pathlib import Path

from ramify.serving.vllm_plugin.messages_and_reports import SchedulerTotals, TotalsReport


def test_totals_of_preemptions_and_pauses_add_up(tmp_path: Path) -> None:
    told = tmp_path / "report.json"
    costs = TotalsReport(str(told))
    costs.preempted("a", 300, 10.0)
    costs.scheduled({"b": 5}, {"a": 0}, 11.0)  # a step without it
    assert costs.waiting_again == ("a",)
    costs.scheduled({"a": 100}, {"a": 292}, 12.5)  # 192 of its tokens were still in the prefix cache
    costs.paused("b", 12.5)
    costs.resumed("b", 13.0)
    costs.paused("c", 13.0)
    costs.left("c", 14.0)
    costs.left("never paused", 14.0)
    costs.refused(running=False)
    costs.refused(running=True)
    expected = SchedulerTotals(1, 108, 2.5, 2, 1.5, 2, 1)
    assert costs.totals == expected
    costs.write(20.0)
    assert SchedulerTotals(**json.loads(told.read_text())) == expected
    costs.refused(running=True)
    costs.write(20.5)
    assert json.loads(told.read_text())["refusals"] == 2, "no more than once a second"
    costs.write(20.5, at_once=True)
    assert json.loads(told.read_text())["refusals"] == 3
