"""An open remote tier: the bucket of one store, seen from one home; and what a home knows of it.

**Deletion and relying.** A push relies on objects that are there already. A collection must not delete them
meanwhile, on whatever machine it runs. There is no lock over a bucket, so both keep to a time, `grace_s`, which is in
the marker:

- A collection first condemns an object that no record names, or a record that no home names: it writes a mark. It
  deletes an object only if its mark is older than `grace_s` by the bucket's own clock and it is still unnamed.
- A push reads the marks, relies on nothing that is marked, and writes its record within half of `grace_s`; after a
  longer time it reads the marks again first. Names of homes are written before anything is relied on.

So a record that relies on an object without a mark is there before `grace_s` after the mark is over, and the
collection sees it. A mark is never taken back, and no name is used twice (`formats.py`), so it does not matter how
long a collection is halted between two of its steps. No machine's own clock is compared with another one's.

**What a home knows** (`HomeSettings`): the bucket, the home's name in it, and where it has seen layers and blobs.

FOLDER/config.json    {"url": …, "store": …, "owner": …}
FOLDER/places-STORE   lines of JSON, only appended: [part, digest, object, offset, length]
FOLDER/fetching/HH    locks (flock): one process fetches an object at a time
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ramify.fork_engine import crash_points
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.errors import ForeignBucket, RemoteObjectAltered, RemoteObjectMissing, RemoteUnusable
from ramify.fork_engine.manifest import MALFORMED, canonical_json
from ramify.fork_engine.remote import formats
from ramify.fork_engine.remote.bucket import Bucket, normalised
from ramify.fork_engine.remote.formats import Member, PackedAt, RemoteRecord
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.store_folder import flush_folder
from ramify.fork_engine.store_parts import Part
from ramify.fork_engine.types import SnapshotId

GRACE_S = 86400.0
"""Seconds for which a condemned object stays, in a bucket that is made here."""

AT_ONCE = 8
"""Requests that one open remote store makes at the same time."""


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """url: the bucket's address. store: the id in its marker. owner: the name under which this home names snapshots
    there."""

    url: str
    store: str
    owner: str


class HomeSettings:
    """The folder `FOLDER` of a home. Created when something is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "config.json"

    def config(self) -> RemoteConfig | None:
        """Return the bucket of this home, or None if it has none yet. Raises `RemoteUnusable` if the file is
        damaged."""
        try:
            return RemoteConfig(**json.loads(self.file.read_bytes()))
        except FileNotFoundError:
            return None
        except MALFORMED:
            raise RemoteUnusable(
                f"{self.file} is damaged: delete it, and name the bucket again with --remote"
            ) from None

    def configure(self, url: str, store: str) -> RemoteConfig:
        """Store the bucket of this home durably. The home keeps the name that it has."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = self.config()
        made = RemoteConfig(url, store, secrets.token_hex(8) if known is None else known.owner)
        aside = self._folder / f".config-{secrets.token_hex(4)}"
        with aside.open("x") as file:
            json.dump(asdict(made), file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.file)
        flush_folder(self._folder)
        return made

    def places(self, store: str) -> dict[Member, PackedAt]:
        """Return where layers and blobs were last seen. A line that a kill cut short is left out."""
        found: dict[Member, PackedAt] = {}
        with suppress(FileNotFoundError):
            for line in (self._folder / f"places-{store}").read_bytes().splitlines():
                with suppress(*MALFORMED):
                    part, digest, name, offset, length = json.loads(line)
                    found[Part(part), digest] = PackedAt(name, offset, length)
        return found

    def add_places(self, store: str, places: Mapping[Member, PackedAt]) -> None:
        """Append places. They only save uploads, so they are not flushed."""
        lines = [[part.value, digest, at.object, at.offset, at.length] for (part, digest), at in places.items()]
        # a leading newline ends a line that was cut short
        text = "".join(f"\n{json.dumps(line)}\n" for line in lines)
        fd = os.open(self._folder / f"places-{store}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    @contextmanager
    def fetching(self, digest: str) -> Iterator[None]:
        """Hold the lock under which a process fetches the object of this digest. Unlike digests may share a lock."""
        folder = self._folder / "fetching"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = open_lock(folder / digest[:2], os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            close_lock(fd)


@dataclass(frozen=True, slots=True)
class Marker:
    """What says that a bucket is a store's remote tier. store: its id."""

    store: str
    grace_s: float


class RemoteStore:
    """A context manager. local: the store of this machine. settings: the home's folder for remote tiers. url: the
    bucket; None for the one that the home used before.

    Entering it raises `RemoteUnusable` if there is no bucket, and `ForeignBucket` if the bucket has no marker and is
    not empty, or has the marker of another store than this home used. With `create`, an empty bucket gets a marker.
    """

    def __init__(
        self,
        local: SnapshotStore,
        settings: Path,
        url: str | Path | None = None,
        *,
        create: bool = False,
        grace_s: float = GRACE_S,
    ) -> None:
        self.local, self.settings = local, HomeSettings(settings)
        self._url, self._create, self._grace_s = url, create, grace_s

    def __enter__(self) -> Self:
        known = self.settings.config()
        if self._url is None and known is None:
            raise RemoteUnusable("this home has no remote store yet: name one with --remote URL")
        url, folder = normalised(self._url if self._url is not None else (known.url if known else ""))
        if folder is not None and not folder.exists():  # opening it would make it
            self._refuse_empty(url, known)
        self.bucket = Bucket(url)
        self.marker = self._read_marker(known)
        if known is not None and known.store != self.marker.store:
            raise ForeignBucket(
                f"{self.bucket.url} belongs to store {self.marker.store}, and this home uses store {known.store} at "
                f"{known.url}: name that bucket, or use another home"
            )
        if known is None or known.url != self.bucket.url:
            known = self.settings.configure(self.bucket.url, self.marker.store)
        self.owner = known.owner
        self.places = self.settings.places(self.marker.store)
        self.pool = ThreadPoolExecutor(AT_ONCE, "ramify-remote")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=True)

    def _read_marker(self, known: RemoteConfig | None) -> Marker:
        try:
            return _parsed_marker(self.bucket)
        except RemoteObjectMissing:
            pass
        if next(self.bucket.objects(), None) is not None:
            raise ForeignBucket(
                f"{self.bucket.url} holds objects that are not a store of Ramify: name an empty "
                "bucket or another prefix"
            )
        self._refuse_empty(self.bucket.url, known)
        fields = {"format": formats.FORMAT, "store": secrets.token_hex(16), "grace_s": self._grace_s}
        self.bucket.create(
            formats.MARKER, canonical_json(fields)
        )  # another home may be first: then its marker counts
        return _parsed_marker(self.bucket)

    def _refuse_empty(self, url: str, known: RemoteConfig | None) -> None:
        """Raise unless a store may be made at an empty address: nothing is written where a home may not push."""
        if known is not None and known.url == url:
            raise ForeignBucket(
                f"{url} is empty, and this home has its store {known.store} there: mount it or bring it back. To "
                f"make a new store, delete {self.settings.file}"
            )
        if known is not None:
            raise ForeignBucket(
                f"{url} is empty, and this home uses store {known.store} at {known.url}: name that bucket, or use "
                "another home"
            )
        if not self._create:
            raise RemoteUnusable(f"{url} is empty: `ramify push STATE --remote URL` makes a store there")

    # Names and marks

    def put_name(self, id: SnapshotId) -> None:
        """Say in the bucket that this home needs the snapshot, so that no other home's collection condemns it."""
        self.bucket.put(formats.name_of(self.owner, id), b"")
        crash_points.point("named")

    def condemned(self) -> dict[str, float]:
        """Return the names of the objects that are marked for deletion, and when each mark was written, by the
        bucket's clock."""
        marks = self.bucket.objects(formats.CONDEMNED)
        return {mark.name.removeprefix(f"{formats.CONDEMNED}/"): mark.modified for mark in marks}

    def condemn(self, name: str) -> None:
        """Mark an object for deletion. A mark that is there stays as old as it is."""
        self.bucket.create(f"{formats.CONDEMNED}/{name}", b"")
        crash_points.point("condemned")

    # Records

    def record_names(self, id: SnapshotId) -> list[str]:
        return sorted(
            one.name for one in self.bucket.objects(f"{formats.RECORDS}/{id}") if formats.is_record(one.name)
        )

    def record(self, name: str) -> RemoteRecord:
        """Raises `RemoteObjectMissing`, `RemoteObjectAltered`."""
        return formats.decode_record(name, self.bucket.get(name))

    def find(self, id: SnapshotId) -> Iterator[RemoteRecord]:
        """Yield the records of a snapshot that can be read, the condemned ones last. Raises the error of the last one
        if none can be read, and `RemoteObjectMissing` if there is none."""
        names = self.record_names(id)
        if not names:
            raise RemoteObjectMissing(
                f"{self.bucket.url} has no snapshot {id}: push it from the machine that has it (`ramify push`)"
            )
        marks = self.condemned() if len(names) > 1 else {}
        readable, why = False, None
        for name in sorted(names, key=marks.__contains__):
            try:
                found = self.record(name)
            except (RemoteObjectMissing, RemoteObjectAltered) as error:
                why = error
                continue
            readable = True
            yield found
        if not readable and why is not None:
            raise why

    def add_places(self, places: dict[Member, PackedAt]) -> None:
        """Remember where members are, in this process and in later ones."""
        new = {member: at for member, at in places.items() if self.places.get(member) != at}
        if new:
            self.places.update(new)
            self.settings.add_places(self.marker.store, new)

    def snapshots_beginning(self, text: str) -> list[SnapshotId]:
        """Return the snapshots in the bucket whose id begins so, sorted."""
        return [SnapshotId(one) for one in self._folders_beginning(formats.RECORDS, text)]

    def runs_beginning(self, text: str) -> list[str]:
        """Return the ids of the runs in the bucket that begin so, sorted."""
        return self._folders_beginning(formats.RUNS, text)

    def _folders_beginning(self, prefix: str, text: str) -> list[str]:
        if next(self.bucket.objects(f"{prefix}/{text}"), None) is not None:  # one request, for a whole id
            return [text]
        return [one for one in self.bucket.folders(prefix) if one.startswith(text)]


def _parsed_marker(bucket: Bucket) -> Marker:
    data = bucket.get(formats.MARKER)
    try:
        raw = json.loads(data)
        if raw["format"] != formats.FORMAT:
            raise ForeignBucket(
                f"{bucket.url} was made by another version of Ramify (format {raw['format']!r}): update this one"
            )
        marker = Marker(str(raw["store"]), float(raw["grace_s"]))
        if not 0 < marker.grace_s < math.inf:  # a collection would delete what a push relies on
            raise ValueError(marker.grace_s)
        return marker
    except MALFORMED:
        raise ForeignBucket(
            f"{bucket.url}: its {formats.MARKER} is not one of Ramify's. Name another bucket"
        ) from None
