"""Fixtures: two machines, each with a store and settings of its own, and a bucket between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.remote import bucket
from ramify.fork_engine.remote.remote_store import RemoteStore

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")


@dataclass
class Machine:
    """A home: its bench, and the open remote tier."""

    bench: Any
    remote: RemoteStore


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk_of_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the store: it would wait for what all other tests wrote."""
    monkeypatch.setattr(bucket, "sync_file_system", lambda _: None)


@pytest.fixture
def machine(tmp_path: Path, new_bench: Callable[[Path], Any]) -> Iterator[Callable[..., Machine]]:
    """Makes a machine by its name, over the bucket in `tmp_path / "bucket"`."""
    with ExitStack() as stack:

        def make(name: str, **options: Any) -> Machine:
            place = tmp_path / name
            place.mkdir(exist_ok=True)
            bench = new_bench(place)
            opening = RemoteStore(bench.store, place / "remote", tmp_path / "bucket", create=True, **options)
            return Machine(bench, stack.enter_context(opening))

        yield make


@pytest.fixture
def objects(tmp_path: Path) -> Callable[[str], list[str]]:
    """The names of the objects below a prefix of the bucket, as the folder holds them."""

    def names(prefix: str) -> list[str]:
        bucket = tmp_path / "bucket"
        return sorted(str(path.relative_to(bucket)) for path in (bucket / prefix).rglob("*") if path.is_file())

    return names


@pytest.fixture
def age(tmp_path: Path) -> Callable[[], None]:
    """Makes everything in the bucket two graces older, by the bucket's clock."""

    def work() -> None:
        for path in (tmp_path / "bucket").rglob("*"):
            if path.is_file():
                then = path.stat().st_mtime - 2 * 86400.0
                os.utime(path, (then, then))

    return work
