"""What the gateway says arrives by a socket.

Totals of preemptions, pauses and refusals.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from ramify.serving.protocol.length_sketch import LEVELS
from ramify.serving.vllm_plugin.messages_and_reports import (
    DecisionLog,
    GatewayMessages,
    NewSketch,
    Release,
    SchedulerTotals,
    TotalsReport,
)


def test_messages_arrive_by_the_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    messages = GatewayMessages(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(json.dumps({"request_id": "a", "length_quantiles": [5.0] * len(LEVELS)}).encode(), path)
        bad = (
            b"",
            b"[]",
            b'{"request_id": "a"}',
            b'{"request_id": "a", "length_quantiles": [1]}',
            b'{"compound_id": 1}',
            b"[" * 20_000,
        )
        for one in (*bad, b'{"compound_id": "r", "branches": 3}'):
            out.sendto(one, path)
        out.sendto(b'{"compound_id": "r", "branches": ["a", "b"]}', path)
        out.sendto(b'{"compound_id": "r"}', path)
    sketch, *released = messages.take()
    assert isinstance(sketch, NewSketch)
    assert (sketch.request_id, sketch.sketch.quantile(0.9)) == ("a", 5.0)
    assert released == [Release("r", ("a", "b")), Release("r", None)]
    assert messages.unreadable == 7
    assert list(messages.take()) == []
    messages.close()
    assert not Path(path).exists()


@pytest.mark.parametrize("length", [10**400, 1e308, float("nan"), float("inf"), -1, "x", None, [1]])
def test_a_length_that_no_answer_has_is_counted_and_ignored(tmp_path: Path, length: object) -> None:
    messages = GatewayMessages(str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        said = {"request_id": "a", "length_quantiles": [length] * len(LEVELS)}
        out.sendto(json.dumps(said).encode(), str(tmp_path / "s"))
    assert (list(messages.take()), messages.unreadable) == ([], 1)
    messages.close()


def test_a_socket_takes_the_place_of_a_socket_and_of_nothing_else(tmp_path: Path) -> None:
    left = GatewayMessages(str(tmp_path / "s"))  # by an engine that was killed
    GatewayMessages(str(tmp_path / "s")).close()
    left.close()
    mine = tmp_path / "mine"
    mine.write_text("precious")
    with pytest.raises(OSError, match="in use"):
        GatewayMessages(str(mine))
    assert mine.read_text() == "precious"


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


def test_a_full_disk_ends_the_report_and_the_log_and_not_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "reports").mkdir()
    report = TotalsReport(str(tmp_path / "reports" / "r.json"))
    report.refused(running=False)
    report.write(1.0)
    (tmp_path / "reports").rename(tmp_path / "gone")
    for at in range(2, 10):
        report.refused(running=False)
        report.stepped(float(at))
    (tmp_path / "gone").rename(tmp_path / "reports")
    report.write(20.0)
    assert json.loads((tmp_path / "reports" / "r.json").read_text())["refusals"] == 9, "it is tried again"
    log = DecisionLog("/dev/full")
    log.refused(1.0, "a", "why")
    log.refused(2.0, "b", "why")
    assert log.refusals == 2 and not log.writes
    log.close()
    assert [one.levelname for one in caplog.records] == ["WARNING", "WARNING"]
