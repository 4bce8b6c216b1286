"""The log of connections is bounded, survives a crash, and is not washed out by refused attempts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.sandboxes.egress import connection_log
from ramify.sandboxes.egress.connection_log import ConnectionFiles, ConnectionLog, Outcome


def made(log: ConnectionLog, host: str, outcome: Outcome) -> None:
    one = log.begin("connect", host, 443)
    if outcome is not Outcome.REFUSED:
        log.opened(one)
    log.ended(replace(one, outcome=outcome, sent=1, received=2))


def test_refused_attempts_do_not_drive_out_what_was_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection_log, "FILE_BYTES", 20_000)
    log, files = ConnectionLog(lambda: 5.0), ConnectionFiles(tmp_path / "world")
    log.keep_in(files)
    made(log, "good.test", Outcome.DONE)
    for number in range(6000):
        made(log, f"bad{number}.test", Outcome.REFUSED)
    for found in (log.all(), files.read()):
        assert [(one.host, one.sent, one.received) for one in found if one.outcome is Outcome.DONE] == [
            ("good.test", 1, 2)
        ]
        assert found[-1].host == "bad5999.test"
        assert len(found) <= connection_log.KEPT + 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5 * 20_000
    files.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_files_hold_one_entry_for_a_connection(tmp_path: Path) -> None:
    log, files = ConnectionLog(iter([1.0, 2.0, 3.0, 4.5, 5.0]).__next__), ConnectionFiles(tmp_path / "world")
    log.keep_in(files)
    one = log.begin("http", "a.test", 80)
    log.opened(replace(one, address="1.2.3.4"))
    assert [(each.outcome, each.address) for each in files.read()] == [(Outcome.OPEN, "1.2.3.4")]
    log.ended(replace(one, outcome=Outcome.CUT, why="w"))
    assert [(each.outcome, each.why, each.seconds) for each in files.read()] == [(Outcome.CUT, "w", 1.0)]


def test_half_a_line_and_other_rubbish_are_left_out(tmp_path: Path) -> None:
    log, files = ConnectionLog(lambda: 1.0), ConnectionFiles(tmp_path / "world")
    log.keep_in(files)
    made(log, "a.test", Outcome.DONE)
    with (tmp_path / "world.connections").open("ab") as file:
        file.write(b'{"id": "x", "at": 1}\n[]\n\xff\xfe\n{"id": "1')
    assert [one.host for one in files.read()] == ["a.test"]


@pytest.mark.parametrize("change", [{"at": "x"}, {"at": float("inf")}, {"host": 5}, {"port": None}, {"why": []}])
def test_a_field_of_another_type_is_left_out(tmp_path: Path, change: dict[str, object]) -> None:
    """The home may come from somebody else."""
    log, files = ConnectionLog(lambda: 5.0), ConnectionFiles(tmp_path / "world")
    log.keep_in(files)
    made(log, "good.test", Outcome.REFUSED)
    (file,) = tmp_path.iterdir()
    line = json.loads(file.read_text())
    with file.open("a") as more:
        more.write(json.dumps({**line, "id": "other", **change}) + "\n" + "[" * 100_000 + "\n")
    assert [one.host for one in files.read()] == ["good.test"]


def test_a_hosts_name_is_bounded(tmp_path: Path) -> None:
    log = ConnectionLog(lambda: 1.0)
    made(log, "a" * 5000, Outcome.REFUSED)
    assert len(log.all()[0].host) == 300


def test_a_log_that_cannot_be_written_costs_no_connection(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = ConnectionLog(lambda: 1.0)
    log.keep_in(ConnectionFiles(tmp_path / "file" / "world"))
    made(log, "a.test", Outcome.DONE)
    assert [one.host for one in log.all()] == ["a.test"]
