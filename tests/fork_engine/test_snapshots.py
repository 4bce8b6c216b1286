"""A snapshot's file, byte for byte, and damage to it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.keys import snapshot_id
from ramify.fork_engine.manifest import canonical_json
from ramify.fork_engine.snapshots import decode, encode
from ramify.fork_engine.types import ContentKey, LayerId, ProcessTier, Snapshot, SnapshotId

LAYERS = (LayerId("1" * 64), LayerId("2" * 64))
ENV = {"B": "\udcff", "A": "1"}
SPELLED = (
    '{"cwd":"d","env":{"A":"1","B":"\\udcff"},"env_unset":["X","Y"],"layers":["'
    + "1" * 64
    + '","'
    + "2" * 64
    + '"],"tier":"dropped"}'
)


def made() -> Snapshot:
    id = snapshot_id(LAYERS, ENV, ("Y", "X"), "d", ProcessTier.DROPPED)
    return Snapshot(id, LAYERS, ContentKey("3" * 64), ENV, ("X", "Y"), "d", ProcessTier.DROPPED)


def test_golden() -> None:
    snapshot = made()
    assert snapshot.id == hashlib.sha256(SPELLED.encode()).hexdigest()
    fields = {**json.loads(SPELLED), "format": 1, "content_key": "3" * 64, "volatile": ["*.pyc"]}
    check = hashlib.sha256(canonical_json(fields)).hexdigest()
    assert encode(snapshot, ("*.pyc",)) == canonical_json({**fields, "check": check})


def test_round_trip() -> None:
    assert decode(encode(made(), ("*.pyc",)), made().id) == (made(), ("*.pyc",))


def test_damage_is_seen() -> None:
    encoded = encode(made(), ())
    for broken in (
        encoded.replace(b"3333", b"3433"),
        encoded.replace(b'"tier":"dropped"', b'"tier":"none"'),
        encoded[:-9],
        b"[]",
        b"",
        b"\xff",
    ):
        with pytest.raises(SnapshotCorrupt, match=made().id):
            decode(broken, made().id)
    with pytest.raises(SnapshotCorrupt):
        decode(encoded, SnapshotId("4" * 64))


def test_unknown_and_impossible_ids(bench: Any) -> None:
    for id in ("0" * 64, "../layers", "", "A" * 64):
        with pytest.raises(SnapshotNotFound):
            bench.store.get(SnapshotId(id))
