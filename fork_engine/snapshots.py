"""Snapshots on disk: `snapshots/<id>.json`, each with a checksum over all it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ramify.fork_engine.content import digest_bytes
from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.keys import snapshot_id
from ramify.fork_engine.layers import Layers, flush_folder, replace_durably
from ramify.fork_engine.manifest import FORMAT, canonical_json
from ramify.fork_engine.types import ContentKey, LayerId, ProcessTier, Snapshot, SnapshotId

_ID = re.compile(r"[0-9a-f]{64}")


class Snapshots:
    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._folder = layers.root / "snapshots"
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def __iter__(self) -> Iterator[SnapshotId]:
        return iter(sorted(SnapshotId(path.stem) for path in self._folder.glob("*.json")))

    def save(self, snapshot: Snapshot, volatile: tuple[str, ...]) -> None:
        """The caller holds the layers' lock since it made or found the snapshot's layers."""
        with self._layers.temporary() as aside:
            replace_durably(self._path(snapshot.id), encode(snapshot, volatile), aside)

    def load(self, id: SnapshotId) -> tuple[Snapshot, tuple[str, ...]]:
        """The snapshot and the volatile globs that its content key was made with."""
        if not _ID.fullmatch(id):
            raise SnapshotNotFound(f"{id!r} is not a snapshot id: 64 hexadecimal digits are")
        try:
            return decode(self._path(id).read_bytes(), id)
        except FileNotFoundError:
            raise SnapshotNotFound(f"snapshot {id} is not in the store {self._layers.root}") from None

    def remove(self, ids: Iterable[SnapshotId]) -> None:
        """For good when this returns, so that what they named may go."""
        for id in ids:
            self._path(id).unlink(missing_ok=True)
        flush_folder(self._folder)

    def _path(self, id: SnapshotId) -> Path:
        return self._folder / f"{id}.json"


def encode(snapshot: Snapshot, volatile: tuple[str, ...]) -> bytes:
    fields = {
        "format": FORMAT,
        "layers": snapshot.layers,
        "env": dict(snapshot.env),
        "env_unset": snapshot.env_unset,
        "cwd": snapshot.cwd,
        "tier": snapshot.tier.value,
        "content_key": snapshot.content_key,
        "volatile": volatile,
    }
    return canonical_json({**fields, "check": digest_bytes(canonical_json(fields))})


def decode(encoded: bytes, id: SnapshotId) -> tuple[Snapshot, tuple[str, ...]]:
    try:
        raw = json.loads(encoded)
        check = raw.pop("check")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _corrupt(id) from None
    if check != digest_bytes(canonical_json(raw)):
        raise _corrupt(id)
    if raw["format"] != FORMAT:
        raise SnapshotCorrupt(f"snapshot {id}: format {raw['format']!r}, this version of Ramify reads {FORMAT}")
    snapshot = Snapshot(
        id=snapshot_id(raw["layers"], raw["env"], raw["env_unset"], raw["cwd"], ProcessTier(raw["tier"])),
        layers=tuple(LayerId(layer) for layer in raw["layers"]),
        content_key=ContentKey(raw["content_key"]),
        env=raw["env"],
        env_unset=tuple(raw["env_unset"]),
        cwd=raw["cwd"],
        tier=ProcessTier(raw["tier"]),
    )
    if snapshot.id != id:
        raise _corrupt(id)
    return snapshot, tuple(raw["volatile"])


def _corrupt(id: SnapshotId) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"snapshot {id}: its file does not match its digest. Delete it and go back to another one")
