"""Where an image comes from: its documents, and a function that gets a layer's blob.

A source is a function that opens an image: `layout.opened`, `archive.opened`, `registry.opened`, `engine.opened`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ramify.images.documents import ImageConfig
from ramify.images.errors import DamagedImage, TooLarge


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
