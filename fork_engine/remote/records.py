"""The names and the records of a remote tier (docs/reference/remote-tier.md).

**No name is used twice.** An object or a record has a random part in its name and is never written again. So a mark
for deletion (`condemned/NAME`) is about one content for ever, and a push that sees it uploads a copy of its own under
another name, which no collection can hit by mistake.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from ramify.fork_engine.errors import RemoteObjectAltered, SnapshotCorrupt
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.manifest import MALFORMED, canonical_json
from ramify.fork_engine.snapshots import decode
from ramify.fork_engine.store_parts import Part
from ramify.fork_engine.types import Snapshot, SnapshotId

FORMAT = 1
MARKER = "ramify-store.json"
OBJECTS, RECORDS, NAMES, CONDEMNED, CLOCK = "objects", "snapshots", "names", "condemned", "clock"
RUNS, CLAIMS = "runs", "claims"

Member = tuple[Part, str]
"""A layer, process image or blob, by its part of the store and its digest."""


@dataclass(frozen=True, slots=True)
class PackedAt:
    """Where a member's bytes are: an object, and the range in it."""

    object: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RemoteRecord:
    """A snapshot in a bucket: its record as in a store, and where everything is that it needs."""

    name: str  # of the object that holds this
    snapshot: Snapshot
    record: bytes
    volatile: tuple[str, ...]
    places: Mapping[Member, PackedAt]

    @property
    def objects(self) -> set[str]:
        return {place.object for place in self.places.values()}


def new_object() -> str:
    return f"{OBJECTS}/{secrets.token_hex(16)}"


def new_record(id: SnapshotId) -> str:
    return f"{RECORDS}/{id}/{secrets.token_hex(8)}.json"


def name_of(owner: str, id: SnapshotId) -> str:
    """Return the object by which a home says that it needs a snapshot."""
    return f"{NAMES}/{owner}/{id}"


def encode(record: bytes, places: Mapping[Member, PackedAt]) -> bytes:
    spelled = {f"{part.value}/{name}": (at.object, at.offset, at.length) for (part, name), at in places.items()}
    fields = {"format": FORMAT, "record": record.decode("ascii"), "places": spelled}
    return canonical_json({**fields, "check": digest_bytes(canonical_json(fields))})


def decode_record(name: str, data: bytes) -> RemoteRecord:
    """Raises `RemoteObjectAltered`."""
    id = SnapshotId(name.split("/")[1])
    try:
        raw = json.loads(data)
        if raw.pop("check") != digest_bytes(canonical_json(raw)):
            raise ValueError("check")
        if raw["format"] != FORMAT:
            raise RemoteObjectAltered(
                f"the record {name} has format {raw['format']!r}, and this version of Ramify reads {FORMAT}: update "
                "Ramify"
            )
        record = raw["record"].encode("ascii")
        snapshot, volatile = decode(record, id)
        places = {_member(said): PackedAt(str(at[0]), int(at[1]), int(at[2])) for said, at in raw["places"].items()}
    except (*MALFORMED, SnapshotCorrupt, IndexError):
        raise RemoteObjectAltered(
            f"the record {name} in the bucket was altered. Push the snapshot again from a machine that has it"
        ) from None
    return RemoteRecord(name, snapshot, record, volatile, places)


def _member(said: str) -> Member:
    part, _, name = said.partition("/")
    return Part(part), name
