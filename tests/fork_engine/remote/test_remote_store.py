"""Opening a bucket: its marker, its address, and what a home keeps of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import ForeignBucket, RemoteUnusable
from ramify.fork_engine.remote.push import push
from ramify.fork_engine.remote.remote_store import RemoteStore


def test_two_homes_share_a_store_under_different_names(machine: Callable[..., Any]) -> None:
    here, there = machine("here"), machine("there")
    assert here.remote.marker == there.remote.marker and here.remote.owner != there.remote.owner
    again = machine("here")
    assert again.remote.owner == here.remote.owner


def test_the_home_remembers_its_bucket(machine: Callable[..., Any], tmp_path: Path) -> None:
    here = machine("here")
    with RemoteStore(here.bench.store, tmp_path / "here" / "remote") as again:
        assert again.bucket.url == here.remote.bucket.url == (tmp_path / "bucket").as_uri()


def test_a_home_without_a_bucket(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(RemoteUnusable, match="--remote URL"), RemoteStore(bench.store, tmp_path / "remote"):
        pass
    with (
        pytest.raises(RemoteUnusable, match="is empty"),
        RemoteStore(bench.store, tmp_path / "remote", tmp_path / "empty"),
    ):
        pass


def test_the_bucket_of_another_store(machine: Callable[..., Any], tmp_path: Path) -> None:
    here = machine("here")
    push(here.remote, [here.bench.base({"a": "1"}).id])
    settings = tmp_path / "here" / "remote"
    other = tmp_path / "other"
    with RemoteStore(here.bench.store, tmp_path / "settings of another home", other, create=True):
        pass
    with pytest.raises(ForeignBucket, match=here.remote.marker.store), RemoteStore(here.bench.store, settings, other):
        pass
    marker = tmp_path / "bucket" / "ramify-store.json"  # a bucket that somebody replaced under the same address
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "store": "another"}))
    with pytest.raises(ForeignBucket, match="another"), RemoteStore(here.bench.store, settings):
        pass


GRACES = ("NaN", "-1", "Infinity", "0", "1" + 400 * "0")


@pytest.mark.parametrize(
    "marker",
    [
        *("{}", "[", '{"format": 9, "store": "s", "grace_s": 1}'),
        *(f'{{"format": 1, "store": "s", "grace_s": {one}}}' for one in GRACES),
    ],
)
def test_a_marker_that_is_not_ours(bench: Any, tmp_path: Path, marker: str) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    (bucket / "ramify-store.json").write_text(marker)
    with pytest.raises(ForeignBucket), RemoteStore(bench.store, tmp_path / "remote", bucket, create=True):
        pass


def test_a_bucket_with_other_things_in_it_is_left_alone(bench: Any, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    (bucket / "report.csv").write_text("somebody's")
    with (
        pytest.raises(ForeignBucket, match="empty"),
        RemoteStore(bench.store, tmp_path / "remote", bucket, create=True),
    ):
        pass
    assert [path.name for path in bucket.iterdir()] == ["report.csv"]


@pytest.mark.parametrize("address", ["ftp://host/x", "s3://key:secret@bucket", "gs://bucket?token=secret", "s3://"])
def test_addresses_that_no_bucket_has(bench: Any, tmp_path: Path, address: str) -> None:
    with pytest.raises(RemoteUnusable) as raised, RemoteStore(bench.store, tmp_path / "remote", address):
        pass
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_address_that_is_refused_stays_as_it_is(
    machine: Callable[..., Any], bench: Any, tmp_path: Path, exists: bool
) -> None:
    machine("here")
    settings, other = tmp_path / "here" / "remote", tmp_path / "other"
    if exists:
        other.mkdir()
    for home, create, why in ((settings, True, ForeignBucket), (tmp_path / "no bucket yet", False, RemoteUnusable)):
        with pytest.raises(why, match="is empty"), RemoteStore(bench.store, home, other, create=create):
            pass
    assert other.exists() == exists and not (exists and list(other.iterdir()))
    bucket = tmp_path / "bucket"
    bucket.rename(tmp_path / "moved")  # such as a file system that is not mounted
    with pytest.raises(ForeignBucket, match=r"config\.json"), RemoteStore(bench.store, settings, create=True):
        pass
    assert not bucket.exists()
