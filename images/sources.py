"""Where an image comes from: its documents, and a function that gets a layer's blob. `LayerStream` reads a blob as a
tar: decompressed, bounded, and verified against both of its digests at the end.

A source is a function that opens an image: `registry.opened`, and `opened_layout`, `opened_archive` and
`opened_in_engine` of `local_images`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from ramify.images.documents import ImageConfig
from ramify.images.errors import CompressionUnsupported, DamagedImage, DigestMismatch, TooLarge


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What an image may have. A layer that grows beyond it, a zip bomb, is refused while it is unpacked."""

    layers: int = 250
    layer_bytes: int = 32 << 30  # unpacked
    image_bytes: int = 64 << 30  # unpacked, all layers


@dataclass(frozen=True, slots=True)
class LayerBlob:
    """A layer: `diff_id` is the digest of its tar, `digest` that of its blob, "" if the source names none."""

    diff_id: str
    digest: str = ""
    size: int = 0  # bytes of the blob


@dataclass(frozen=True, slots=True)
class BlobFile:
    """A blob on this machine: a part of a file."""

    path: Path
    offset: int
    size: int


Progress = Callable[[LayerBlob, int], None]
"""Called with a layer and the bytes of its blob that are here."""


@dataclass(frozen=True, slots=True)
class SourceImage:
    """An image, open at its source. `id` is the digest of its configuration."""

    id: str
    config: ImageConfig
    layers: tuple[LayerBlob, ...]  # lowest first
    fetch: Callable[[LayerBlob, Progress], Awaitable[BlobFile]]
    name: str  # for messages


def matched(
    config: ImageConfig, blobs: list[tuple[str, int]], what: str, limits: ImageLimits
) -> tuple[LayerBlob, ...]:
    """The layers, from the configuration's diff_ids and the manifest's (digest, size). Raises `DamagedImage`,
    `TooLarge`."""
    if len(blobs) != len(config.diff_ids):
        raise DamagedImage(
            f"{what}: its manifest has {len(blobs)} layers and its configuration {len(config.diff_ids)}. "
            "Export or push the image again"
        )
    if len(blobs) > limits.layers:
        raise TooLarge(
            f"{what}: it has {len(blobs)} layers, more than {limits.layers}. Squash it, or raise the limit"
        )
    return tuple(LayerBlob(diff, digest, size) for diff, (digest, size) in zip(config.diff_ids, blobs, strict=True))


_GZIP, _ZSTD, _BZIP2, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00"
_MAX_WINDOW = 1 << 27
"""Bytes of a zstd window, which is held in memory: what `zstd --long` makes by default."""


class _Section(io.RawIOBase):
    """A part of a file, hashed as it is read."""

    def __init__(self, blob: BlobFile) -> None:
        self._file = blob.path.open("rb", buffering=0)
        self._file.seek(blob.offset)
        self._left = blob.size
        self.hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))[: self._left]
        read = self._file.readinto(view)
        self.hash.update(view[:read])
        self._left -= read
        return read

    def close(self) -> None:
        self._file.close()
        super().close()


class LayerStream(io.RawIOBase):
    """A context manager. At the end of the tar `read` raises `DigestMismatch` if the blob or the tar is another one
    than the image names; before, `TooLarge`, and `DamagedImage` for a blob that does not decompress."""

    def __init__(self, blob: BlobFile, layer: LayerBlob, *, limit: int, name: str) -> None:
        self._layer, self._limit, self._name = layer, limit, name
        self._section = _Section(blob)
        self._raw: io.BufferedReader = io.BufferedReader(cast("io.RawIOBase", self._section), 1 << 20)
        self._tar, self._errors = _decompressed(self._raw, name)
        self._hash = hashlib.sha256()
        self.bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self._tar.read(size)
        except self._errors as error:
            raise DamagedImage(
                f"{self._name}: its blob does not decompress ({type(error).__name__}). Pull or export it again"
            ) from None
        self.bytes += len(data)
        if self.bytes > self._limit:
            raise TooLarge(
                f"{self._name}: it unpacks to more than {self._limit} bytes, as a zip bomb does. If it is meant to, "
                "raise ImageLimits"
            )
        self._hash.update(data)
        if not data and size != 0:
            self._verify()
        return data

    def _verify(self) -> None:
        while self._raw.read(1 << 20):
            pass
        blob, tar = (f"sha256:{one.hexdigest()}" for one in (self._section.hash, self._hash))
        if self._layer.digest and blob != self._layer.digest:
            raise DigestMismatch(
                f"{self._name}: its blob has the digest {blob}, and {self._layer.digest} was promised"
            )
        if tar != self._layer.diff_id:
            raise DigestMismatch(
                f"{self._name}: its tar has the digest {tar}, and {self._layer.diff_id} was promised"
            )

    def close(self) -> None:
        self._raw.close()
        super().close()


def _decompressed(raw: io.BufferedReader, name: str) -> tuple[IO[bytes], tuple[type[Exception], ...]]:
    """The tar, and the errors that reading it raises for damaged bytes."""
    magic = raw.peek(6)[:6]
    if magic.startswith(_GZIP):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)), (gzip.BadGzipFile, EOFError, zlib.error)
    if magic.startswith(_ZSTD):
        return _zstd(raw, name)
    if magic.startswith((_BZIP2, _XZ)):
        raise CompressionUnsupported(f"{name}: it is compressed by bzip2 or xz, which no image has. Export it again")
    return cast("IO[bytes]", raw), ()


def _zstd(raw: io.BufferedReader, name: str) -> tuple[IO[bytes], tuple[type[Exception], ...]]:
    for one in (_zstd_of_the_standard_library, _zstandard):
        try:
            return one(raw)
        except ModuleNotFoundError:
            continue
    raise CompressionUnsupported(
        f"{name}: it is compressed by zstd, which Python reads from 3.14 on. pip install 'ramify[zstd]'"
    )


Opened = tuple[IO[bytes], tuple[type[Exception], ...]]


def _zstd_of_the_standard_library(raw: io.BufferedReader) -> Opened:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14

    options = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW.bit_length() - 1}
    return cast("IO[bytes]", zstd.ZstdFile(raw, options=options)), (zstd.ZstdError, EOFError)


def _zstandard(raw: io.BufferedReader) -> Opened:
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(raw, read_across_frames=True)
    return cast("IO[bytes]", reader), (zstandard.ZstdError,)
