"""Images of a registry, by protocol v2 (OCI distribution-spec 1.1): layers are fetched at once, each verified by its
digest. A download that was cut, also by a crash, goes on where it stopped: downloads lie in a folder by their
digests, and one process at a time works at one of them."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ramify import paths
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.store_folder import translate_disk_errors
from ramify.images import documents
from ramify.images.documents import Descriptor, Platform
from ramify.images.errors import DigestMismatch, RegistryError, RegistryUnreachable
from ramify.images.local_images import MOST_NESTED
from ramify.images.references import ImageReference
from ramify.images.registry_client import STALL_S, RegistryClient, login_for
from ramify.images.sources import BlobFile, ImageLimits, LayerBlob, Progress, SourceImage, matched

KEPT_S = 7 * 86400.0
"""Seconds for which an unfinished download is kept."""

_PAUSE_S = 0.05
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Download:
    """A file that grows, open and locked."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self.size = os.fstat(descriptor).st_size

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._descriptor, left, self.size)
            self.size += written
            left = left[written:]

    def drop(self) -> None:
        """Forget all of its bytes."""
        os.ftruncate(self._descriptor, 0)
        self.size = 0

    def digest(self) -> str:
        with os.fdopen(os.dup(self._descriptor), "rb") as file:  # another pull may remove the name meanwhile
            file.seek(0)
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


class Downloads:
    """A context manager: the downloads of one pull in a folder that several pulls may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        paths.make_private(self._folder)
        for path in self._folder.iterdir():
            if not _DIGEST.fullmatch(path.name):
                continue  # a link in the home of somebody else could make this a folder of the user's
            with suppress(FileNotFoundError):  # another pull finished and removed it
                if time.time() - path.stat().st_mtime > KEPT_S:
                    path.unlink()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @asynccontextmanager
    async def one(self, digest: str) -> AsyncIterator[Download]:
        """The download of a blob, held alone. Waits for another pull of it."""
        path = self._folder / digest.removeprefix("sha256:")
        while True:
            descriptor = open_lock(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    break
            except BlockingIOError:
                await asyncio.sleep(_PAUSE_S)
            except BaseException:
                close_lock(descriptor)
                raise
            close_lock(descriptor)  # another pull holds it, or finished and removed it
        try:
            yield Download(path, descriptor)
        finally:
            close_lock(descriptor)

    def finish(self, digests: Iterable[str]) -> None:
        """Remove the downloads of blobs that were imported."""
        for digest in digests:
            (self._folder / digest.removeprefix("sha256:")).unlink(missing_ok=True)


AT_ONCE = 4  # layers that are fetched at the same time
_ATTEMPTS = 4  # one after the other that bring little
_MOST_ATTEMPTS = 200  # at one layer
_LITTLE = 64 << 10  # bytes
_FIRST_PAUSE_S = 0.2


@dataclass(slots=True)
class Pulling:
    """How to pull: what tests replace. `clock`: monotonic seconds."""

    stall_s: float = STALL_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


@asynccontextmanager
async def opened(
    reference: ImageReference,
    platform: Platform,
    limits: ImageLimits,
    folder: Path,
    pulling: Pulling | None = None,
) -> AsyncIterator[SourceImage]:
    """The image of a registry. `folder`: for downloads; what an earlier pull left there is used.

    Raises `RegistryError`, `ImageNotFound`, `WrongPlatform`, `DamagedImage`.
    """
    pulling, what = pulling or Pulling(), str(reference)
    login = await asyncio.to_thread(login_for, reference.registry)
    async with RegistryClient(reference, login, clock=pulling.clock, stall_s=pulling.stall_s) as client:
        raw = await client.document(f"manifests/{reference.at}")
        if reference.digest:
            documents.verified(raw, reference.digest, what)
        document = documents.parse(raw, what)
        for _ in range(MOST_NESTED):
            if not documents.is_index(document):
                break
            chosen = documents.for_platform(document, platform, what)
            raw = documents.verified(await client.document(f"manifests/{chosen.digest}"), chosen.digest, what)
            document = documents.parse(raw, what)
        manifest = documents.manifest_of(document, what)
        data = await client.document(f"blobs/{manifest.config.digest}")
        config = documents.config_of(documents.verified(data, manifest.config.digest, what), platform, what)
        blobs = {layer.digest: layer for layer in manifest.layers}
        pairs = [(layer.digest, layer.size) for layer in manifest.layers]
        layers = matched(config, pairs, what, limits)
        with Downloads(folder) as downloads:

            async def fetch(layer: LayerBlob, progress: Progress) -> BlobFile:
                async with pulling.slots:
                    with translate_disk_errors(folder):
                        async with downloads.one(layer.digest) as download:
                            await _fetched(client, blobs[layer.digest], download, layer, progress, pulling)
                            return BlobFile(download.path, 0, layer.size)

            yield SourceImage(manifest.config.digest, config, layers, fetch, what)
            downloads.finish(blobs)


async def _fetched(
    client: RegistryClient,
    blob: Descriptor,
    download: Download,
    layer: LayerBlob,
    progress: Progress,
    pulling: Pulling,
) -> None:
    """Fetch what is missing, and verify the whole."""
    weak = attempts = 0
    while (before := download.size) < blob.size:
        attempts += 1
        try:
            await _go_on(client, blob, download, layer, progress)
        except RegistryUnreachable:
            weak = weak + 1 if download.size - before < _LITTLE else 0
            if weak >= _ATTEMPTS or attempts >= _MOST_ATTEMPTS:
                raise
            await pulling.sleep(_FIRST_PAUSE_S * 2**weak)
        else:
            if download.size == before:
                raise RegistryError(f"{client.what}: the registry sends no bytes of {blob.digest}. Ask its operator")
    if await asyncio.to_thread(download.digest) != blob.digest:
        download.drop()
        raise DigestMismatch(
            f"{client.what}: the registry sent other bytes than {blob.digest}. Pull again, or from another registry"
        )
    progress(layer, blob.size)


async def _go_on(
    client: RegistryClient, blob: Descriptor, download: Download, layer: LayerBlob, progress: Progress
) -> None:
    at = download.size
    async with client.opened(f"blobs/{blob.digest}", {"Range": f"bytes={at}-"} if at else {}) as response:
        if at and not response.headers.get("Content-Range", "").startswith(f"bytes {at}-"):
            download.drop()  # it does not resume: from the start
            if response.status_code != 200:
                return
        async for chunk in client.chunks(response):
            download.write(chunk)
            if download.size > blob.size:
                download.drop()
                raise DigestMismatch(
                    f"{client.what}: the registry sends more than the {blob.size} bytes of {blob.digest}. Pull from "
                    "another registry"
                )
            progress(layer, download.size)
