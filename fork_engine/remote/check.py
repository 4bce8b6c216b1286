"""Check a remote tier: fetch everything that its records name, and compare it with the digests. Writes nothing here.

With `repair`, objects and records that are damaged or incomplete are condemned. No push relies on a condemned object,
so the next push of the snapshot, from a machine that has it, uploads a sound copy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ramify.fork_engine.errors import RemoteObjectAltered, RemoteObjectMissing
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.filesystem.openat import remove_tree
from ramify.fork_engine.remote import formats
from ramify.fork_engine.remote.formats import ExactReader, Member, PackedAt, RemoteRecord, read_manifest, write_layer
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.store_folder import ID
from ramify.fork_engine.store_parts import Part, needed_by
from ramify.fork_engine.types import LayerId, SnapshotId


class RemoteDamage(StrEnum):
    MISSING = "missing"
    ALTERED = "altered"
    FOREIGN = "not the store's"


@dataclass(frozen=True, slots=True)
class RemoteProblem:
    """name: an object in the bucket. detail: which layer, image or blob, and what is wrong."""

    name: str
    damage: RemoteDamage
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.damage.value}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class RemoteReport:
    """lost: snapshots that this home names and that no record of the bucket can restore. condemned: with `repair`,
    the objects and records that were marked for deletion."""

    records: int
    members: int
    problems: tuple[RemoteProblem, ...]
    lost: tuple[SnapshotId, ...]
    condemned: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """The exit status: the sum of 1 (something is damaged) and 2 (something is missing)."""
        altered = any(one.damage is not RemoteDamage.MISSING for one in self.problems)
        missing = bool(self.lost) or any(one.damage is RemoteDamage.MISSING for one in self.problems)
        return altered + 2 * missing


_TOP = {
    formats.OBJECTS,
    formats.RECORDS,
    formats.NAMES,
    formats.CONDEMNED,
    formats.RUNS,
    formats.CLOCK,
    formats.CLAIMS,
    formats.MARKER,
}


def check(remote: RemoteStore, *, repair: bool = False) -> RemoteReport:
    """Check everything that records name. Needs the disk space of the largest layer. Raises `RemoteError` if the
    bucket cannot be used at all."""
    problems = [
        RemoteProblem(one.name, RemoteDamage.FOREIGN)
        for one in remote.bucket.objects()
        if one.name.split("/")[0] not in _TOP
    ]
    found: list[RemoteRecord] = []
    bad: dict[str, RemoteProblem] = {}
    for info in remote.bucket.objects(formats.RECORDS):
        try:
            record = remote.record(info.name)
            if needed_by(record.snapshot) - record.places.keys():
                raise RemoteObjectAltered("it does not say where all its parts are")
            found.append(record)
        except RemoteObjectAltered as error:
            bad[info.name] = RemoteProblem(info.name, RemoteDamage.ALTERED, str(error).split(". ")[0])
        except RemoteObjectMissing:
            continue  # deleted since it was listed
    places = {(member, at) for record in found for member, at in record.places.items()}
    wrong = _wrong_members(remote, sorted(places, key=lambda one: (one[1].object, one[1].offset)))
    for (_, at), problem in wrong.items():
        bad.setdefault(at.object, problem)
    whole = {one.snapshot.id for one in found if not wrong.keys() & one.places.items()}
    broken = [one.name for one in found if wrong.keys() & one.places.items()]
    names = (one.name.rpartition("/")[2] for one in remote.bucket.objects(f"{formats.NAMES}/{remote.owner}"))
    lost = sorted({SnapshotId(id) for id in names if ID.fullmatch(id)} - whole)
    condemned = sorted({*bad, *broken}) if repair else []
    for name in condemned:
        remote.condemn(name)
    return RemoteReport(
        len(found) + len(bad.keys() - {at.object for _, at in wrong}),
        len(places),
        (*problems, *sorted(bad.values(), key=str)),
        tuple(lost),
        tuple(condemned),
    )


Placed = tuple[Member, PackedAt]


def _wrong_members(remote: RemoteStore, places: Iterable[Placed]) -> Mapping[Placed, RemoteProblem]:
    def problem(one: Placed) -> tuple[Placed, RemoteProblem] | None:
        (part, digest), at = one
        what = f"{part.value}/{digest}"
        try:
            _read(remote, one)
        except RemoteObjectMissing:
            return one, RemoteProblem(at.object, RemoteDamage.MISSING, what)
        except RemoteObjectAltered:
            return one, RemoteProblem(at.object, RemoteDamage.ALTERED, what)
        return None

    return dict(one for one in remote.pool.map(problem, places) if one is not None)


def _read(remote: RemoteStore, placed: Placed) -> None:
    """Fetch a member and compare it with its digest. Raises `RemoteObjectMissing`, `RemoteObjectAltered`."""
    (part, digest), at = placed
    reader = ExactReader(remote.bucket.stream(at.object, at.offset, at.length), at.object)
    if part is Part.BLOBS:
        if digest_bytes(reader.read(at.length)) != digest:
            raise reader.altered(f"blob {digest} does not match its digest")
        return
    manifest = read_manifest(reader, LayerId(digest))
    aside = Path(tempfile.mkdtemp(dir=remote.local.parts.folder.tmp))
    try:
        (aside / "fs").mkdir()
        write_layer(aside / "fs", manifest, reader)
    finally:
        remove_tree(aside)
