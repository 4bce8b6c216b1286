"""Bytes by their digest: what a snapshot keeps beside its trees, as the state of its shell."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from ramify.fork_engine import crash
from ramify.fork_engine.content import digest_bytes
from ramify.fork_engine.errors import SnapshotCorrupt
from ramify.fork_engine.files import make_folder, read_own, write_new
from ramify.fork_engine.folder import StoreFolder

GRACE_S = 3600.0
"""A blob or process image that no snapshot names yet lives so long: its snapshot may still be in the making."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """The `blobs/` folder of a store."""

    def __init__(self, folder: StoreFolder) -> None:
        self._store = folder
        self._folder = folder.root / "blobs"
        make_folder(self._folder)

    def __contains__(self, digest: str) -> bool:
        return _DIGEST.fullmatch(digest) is not None and (self._folder / digest).exists()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.name for path in self._folder.iterdir()))

    def put(self, data: bytes) -> str:
        digest = digest_bytes(data)
        with self._store.lock():
            if digest in self:
                os.utime(self._folder / digest)
            else:
                with self._store.temporary() as aside:
                    write_new(aside / "made", data)
                    self._store.place(aside / "made", "blobs", digest)
        return digest

    def get(self, digest: str) -> bytes:
        """Raises `SnapshotCorrupt` where it is gone or not what its name says."""
        try:
            data = read_own(self._folder / digest)
        except FileNotFoundError:
            raise SnapshotCorrupt(f"blob {digest} is missing. Delete the snapshots that name it") from None
        if digest_bytes(data) != digest:
            raise SnapshotCorrupt(f"blob {digest} does not match its digest. Delete the snapshots that name it")
        return data

    def remove_unnamed(self, named: set[str]) -> int:
        """The bytes freed. The caller holds the store's lock alone."""
        freed = 0
        for digest in self:
            path = self._folder / digest
            status = path.stat()
            if digest not in named and time.time() - status.st_mtime > GRACE_S:
                path.unlink()
                crash.point("removed")
                freed += status.st_blocks * 512
        return freed
