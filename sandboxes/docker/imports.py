"""Which image of the engine a world's container is made from. What is ours is imported once, and named by content."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import LayerId, Snapshot
from ramify.sandboxes.docker.engine import Engine
from ramify.sandboxes.docker.image import RootFs, write_folder
from ramify.sandboxes.errors import WorldStartFailed

HOST, OURS = "ramify/host", "ramify/image"
DIGITS = 24  # of a digest, in a tag


class Images:
    """Finds images, importing those that the engine has not yet. One import at a time: siblings want the same."""

    def __init__(self, engine: Engine, store: SnapshotStore, folder: Path) -> None:
        self._engine, self._store, self._folder = engine, store, folder
        self._known: dict[LayerId | Path | None, tuple[str, LayerId | None]] = {}
        self._one = asyncio.Lock()

    async def find(self, snapshot: Snapshot, wanted: Path | None) -> tuple[str, LayerId | None]:
        """The image under `snapshot`, else the one `wanted`, else one of this machine's own programs.

        `wanted` is a root file system's folder or tar; where there is no such file, an image of the engine by name.
        Gives the engine's name of it, and the layer that it is in our store, if it is one.
        Raises `WorldStartFailed`, `BackendUnavailable`, and what importing into the store raises.
        """
        key = snapshot.image or wanted
        async with self._one:
            if key not in self._known:
                self._known[key] = await asyncio.to_thread(self._find, snapshot, wanted)
            return self._known[key]

    def _find(self, snapshot: Snapshot, wanted: Path | None) -> tuple[str, LayerId | None]:
        if snapshot.image is None and wanted is not None:
            if not wanted.exists():
                return self._named(str(wanted)), None
            snapshot = replace(snapshot, image=self._store.import_image(wanted))
        if snapshot.image is None:
            root = RootFs.of_host()
            return self._imported(f"{HOST}:{root.digest()[:DIGITS]}", root.write), None
        folder = self._store.outside_dirs(snapshot)[0]
        name = self._imported(f"{OURS}:{snapshot.image[:DIGITS]}", lambda tar: write_folder(folder, tar))
        return name, snapshot.image

    def _named(self, name: str) -> str:
        if not self._engine.has_image(name):
            raise WorldStartFailed(
                f"{name} is neither a root file system's folder or tar nor an image of the Docker Engine: "
                f"name one that is there, or `docker pull {name}` first"
            )
        return name

    def _imported(self, name: str, write: Callable[[BinaryIO], None]) -> str:
        if not self._engine.has_image(name):
            with tempfile.TemporaryFile(dir=self._folder) as tar:
                write(tar)
                tar.seek(0)
                self._engine.import_tar(tar, name)
        return name
