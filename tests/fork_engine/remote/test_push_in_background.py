"""Uploads off the critical path."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import RemoteError, RemoteObjectMissing, SnapshotNotFound
from ramify.fork_engine.remote import push
from ramify.fork_engine.remote.pull import pull
from ramify.fork_engine.remote.push import BackgroundPush
from ramify.fork_engine.types import SnapshotId


def test_what_was_queued_is_uploaded_at_the_latest_at_the_end(machine: Callable[..., Any]) -> None:
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    states = [here.bench.after(base, {"leaf": str(number)}) for number in range(5)]
    with BackgroundPush(here.remote) as pushing:
        for state in states:
            pushing.add(state.id)
            pushing.add(state.id)
        pushing.add(SnapshotId("0" * 64))  # deleted before its turn: left out
    assert pull(there.remote, [state.id for state in states]).snapshots == tuple(states)


@pytest.mark.parametrize("by", ["a later call", "the end"])
def test_errors_are_kept_and_what_failed_is_tried_again(machine: Callable[..., Any], tmp_path: Path, by: str) -> None:
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    names = tmp_path / "bucket" / "names"
    names.write_text("in the way")
    with BackgroundPush(here.remote) as pushing:
        pushing.add(base.id)
        pushing.wait()
        assert len(pushing.errors) == 1
        with pytest.raises(RemoteObjectMissing):
            next(there.remote.find(base.id))
        names.unlink()
        if by == "a later call":
            pushing.add(base.id)
            pushing.wait()
            assert next(there.remote.find(base.id)).snapshot == base
    assert next(there.remote.find(base.id)).snapshot == base


def test_upload_returns_once_the_bucket_has_it(machine: Callable[..., Any], tmp_path: Path) -> None:
    here, there = machine("here"), machine("there")
    first, second = here.bench.base({"a": "1"}), here.bench.base({"a": "2"})
    names = tmp_path / "bucket" / "names"
    with BackgroundPush(here.remote) as pushing:
        for _ in range(2):
            pushing.upload(first.id)
            assert next(there.remote.find(first.id)).snapshot == first
        aside = names.rename(tmp_path / "aside")
        names.write_text("in the way")
        with pytest.raises(RemoteError, match="names"):
            pushing.upload(second.id)
        with pytest.raises(SnapshotNotFound):
            pushing.upload(SnapshotId("0" * 64))
        names.unlink()
        aside.rename(names)
        pushing.upload(second.id)
        assert next(there.remote.find(second.id)).snapshot == second


def test_an_upload_that_fails_in_any_way_is_told(
    machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("here"), machine("there")
    first, second, third = (here.bench.base({"a": str(number)}) for number in range(3))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with BackgroundPush(here.remote) as pushing:
        with monkeypatch.context() as patched:
            patched.setattr(push, "push", full)
            with pytest.raises(RemoteError, match="No space left"):
                pushing.upload(first.id)
        pushing.upload(second.id)  # the thread lives
    assert next(there.remote.find(first.id)).snapshot == first  # tried again at the end
    with pytest.raises(RemoteError, match="closed"):
        pushing.upload(third.id)


def test_one_that_waits_again_while_its_batch_goes_on_is_uploaded(
    machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("here"), machine("there")
    first, second = here.bench.base({"a": "1"}), here.bench.base({"a": "2"})
    plain, calls, failed, asked = push.push, [], threading.Event(), threading.Event()

    def uneven(remote: Any, batch: list[SnapshotId], pins: Any = None) -> Any:
        calls.append(batch)
        if len(calls) == 1:
            raise SnapshotNotFound("one of the batch")
        if len(calls) == 2:
            raise RemoteError("the first, once")
        if len(calls) == 3:
            failed.set()
            assert asked.wait(60)
        return plain(remote, batch, pins)

    monkeypatch.setattr(push, "push", uneven)
    with BackgroundPush(here.remote) as pushing:
        with pushing._changed:  # both in one batch
            pushing.add(first.id)
            pushing.add(second.id)
        assert failed.wait(60)
        pushing.add(first.id)
        asked.set()
        pushing.upload(first.id)
        assert next(there.remote.find(first.id)).snapshot == first


def test_what_fails_again_is_raised_at_the_end(machine: Callable[..., Any], tmp_path: Path) -> None:
    here = machine("here")
    (tmp_path / "bucket" / "names").write_text("in the way")
    with pytest.raises(RemoteError, match="names"), BackgroundPush(here.remote) as pushing:
        pushing.add(here.bench.base({"a": "1"}).id)
