"""Run locks: one process works on a run, and checking the lock does not disturb it."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from ramify.runtime.errors import RunLocked, RunPushed, StoreError
from ramify.runtime.records import RunId
from ramify.runtime.store.run_locks import RunLock, is_held, request_cancel, take_cancel_request, was_worked_on_here

RUN = RunId("run-1")


def test_checking_a_lock_does_not_block_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check takes the lock for a moment, and an open page checks all the time."""
    with RunLock(tmp_path, RUN):
        assert is_held(tmp_path, RUN)
    looking = os.open(tmp_path / f"{RUN}.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(looking))  # the moment is over
    with RunLock(tmp_path, RUN):
        assert is_held(tmp_path, RUN)
    assert not is_held(tmp_path, RUN)


def test_who_looks_may_take_long(tmp_path: Path) -> None:
    """On a busy machine the kernel may stop it between two instructions."""
    (tmp_path / f"{RUN}.lock").touch()
    looking = os.open(tmp_path / f"{RUN}.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    over = threading.Timer(0.5, os.close, [looking])
    over.start()
    with RunLock(tmp_path, RUN):
        assert is_held(tmp_path, RUN)
    over.join()


def test_a_pipe_in_place_of_a_lock_does_not_block(tmp_path: Path) -> None:
    """In the home of somebody else."""
    os.mkfifo(tmp_path / f"{RUN}.lock")
    assert not is_held(tmp_path, RUN)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"url": "s3://b"}', "\\xff"])
def test_a_damaged_note_of_a_push_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{RUN}.pushed").write_bytes(text.encode("latin-1"))
    with pytest.raises(RunPushed, match=r"run-1\.pushed, which says where to, is damaged"):
        RunLock(tmp_path, RUN).__enter__()


def test_a_pipe_in_place_of_such_a_note_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{RUN}.pushed")
    with pytest.raises(RunPushed, match=r"run-1\.pushed, which says where to, is damaged"):
        RunLock(tmp_path, RUN).__enter__()


def test_only_one_process_holds_a_run(tmp_path: Path) -> None:
    with RunLock(tmp_path, RUN), pytest.raises(RunLocked, match="wait for it or stop it"):
        RunLock(tmp_path, RUN).__enter__()


@pytest.mark.parametrize("id", ["../beside", "/tmp/beside", "..", ".", "", "a\0b", "é" * 150])
def test_an_id_in_the_database_of_somebody_else_makes_no_file_elsewhere(tmp_path: Path, id: str) -> None:
    locks, run = tmp_path / "locks", RunId(id)
    for work in (
        lambda: RunLock(locks, run),
        lambda: request_cancel(locks, run),
        lambda: take_cancel_request(locks, run),
    ):
        with pytest.raises(StoreError, match="cannot be the name of a file"):
            work()
    assert not is_held(locks, run)
    assert not was_worked_on_here(locks, run)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / f"{RUN}.lock").symlink_to(tmp_path / "of-the-user")
    assert not is_held(locks, RUN)
    with pytest.raises(StoreError, match=r"run-1\.lock is a link"):
        RunLock(locks, RUN).__enter__()
    assert not (tmp_path / "of-the-user").exists()
