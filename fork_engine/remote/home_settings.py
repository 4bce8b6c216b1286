"""What a home knows of its remote tier: the bucket, the home's name in it, and where it has seen layers and blobs.

FOLDER/config.json    {"url": …, "store": …, "owner": …}
FOLDER/places-STORE   lines of JSON, only appended: [part, digest, object, offset, length]
FOLDER/fetching/HH    locks (flock): one process fetches an object at a time
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.errors import RemoteUnusable
from ramify.fork_engine.manifest import MALFORMED
from ramify.fork_engine.remote.records import Member, PackedAt
from ramify.fork_engine.store_folder import flush_folder
from ramify.fork_engine.store_parts import Part


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

    def config(self) -> RemoteConfig | None:
        """Return the bucket of this home, or None if it has none yet. Raises `RemoteUnusable` if the file is
        damaged."""
        path = self._folder / "config.json"
        try:
            return RemoteConfig(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except MALFORMED:
            raise RemoteUnusable(f"{path} is damaged: delete it, and name the bucket again with --remote") from None

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
        aside.replace(self._folder / "config.json")
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
        text = "".join(
            f"\n{json.dumps(line)}\n" for line in lines
        )  # a leading newline ends a line that was cut short
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
