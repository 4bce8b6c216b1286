"""Who works on a run, and who only asks whether somebody does."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from ramify.runtime.errors import RunLocked
from ramify.runtime.records import RunId
from ramify.runtime.store.run_locks import RunLock, is_held

RUN = RunId("run-1")


def test_who_only_looks_keeps_nobody_from_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look is to have the lock for a moment, and a page that is open looks all the time."""
    with RunLock(tmp_path, RUN):
        assert is_held(tmp_path, RUN)
    looking = os.open(tmp_path / f"{RUN}.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(looking))  # the moment is over
    with RunLock(tmp_path, RUN):
        assert is_held(tmp_path, RUN)
    assert not is_held(tmp_path, RUN)


def test_a_run_is_one_processs(tmp_path: Path) -> None:
    with RunLock(tmp_path, RUN), pytest.raises(RunLocked, match="wait for it or stop it"):
        RunLock(tmp_path, RUN).__enter__()
