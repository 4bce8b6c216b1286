"""OCI image layouts: a folder with `oci-layout`, `index.json` and `blobs/` (image-spec, image-layout.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ramify.images import documents
from ramify.images.documents import Descriptor, Platform
from ramify.images.errors import DamagedImage, ImageNotFound
from ramify.images.references import ImageReference
from ramify.images.sources import BlobFile, ImageLimits, LayerBlob, Progress, SourceImage, matched

Locate = Callable[[str], BlobFile]
"""The file of a layout by its path in it. Raises `ImageNotFound`."""

MOST_NESTED = 4  # indexes within each other


@asynccontextmanager
async def opened(reference: ImageReference, platform: Platform, limits: ImageLimits) -> AsyncIterator[SourceImage]:
    """The image of a layout that is a folder. `reference.tag` chooses among several.

    Raises `ImageNotFound`, `WrongPlatform`, `DamagedImage`.
    """
    folder = reference.path
    assert folder is not None

    def locate(path: str) -> BlobFile:
        try:
            return BlobFile(folder / path, 0, (folder / path).stat().st_size)
        except OSError as error:
            raise ImageNotFound(f"{folder / path}: {error.strerror}. Name a complete OCI layout") from None

    yield await asyncio.to_thread(image_of, locate, reference, platform, limits)


def image_of(locate: Locate, reference: ImageReference, platform: Platform, limits: ImageLimits) -> SourceImage:
    what = str(reference)

    def document(descriptor: Descriptor) -> bytes:
        return documents.verified(read(locate(_blob(descriptor.digest))), descriptor.digest, what)

    index = documents.parse(read(locate("index.json")), what)
    raw = documents.parse(document(_chosen(index, reference, platform)), what)
    for _ in range(MOST_NESTED):
        if not documents.is_index(raw):
            break
        raw = documents.parse(document(documents.for_platform(raw, platform, what)), what)
    manifest = documents.manifest_of(raw, what)
    config = documents.config_of(document(manifest.config), platform, what)

    async def fetch(layer: LayerBlob, progress: Progress) -> BlobFile:
        found = locate(_blob(layer.digest))
        progress(layer, found.size)
        return found

    blobs = [(layer.digest, layer.size) for layer in manifest.layers]
    return SourceImage(manifest.config.digest, config, matched(config, blobs, what, limits), fetch, what)


def _chosen(index: dict[str, object], reference: ImageReference, platform: Platform) -> Descriptor:
    """The entry of the layout's index that the reference names; without a tag, the only image or that for this
    platform."""
    what = str(reference)
    offered = documents.manifests_of(index, what)
    if reference.tag:
        named = [one for one in offered if one.name == reference.tag or one.name.endswith(f":{reference.tag}")]
        if not named:
            there = ", ".join(sorted(one.name for one in offered if one.name)) or "no names"
            raise ImageNotFound(f"{what}: the layout has no image of this name; it has {there}")
        offered = named
    if len(offered) == 1:
        return offered[0]
    if not offered:
        raise DamagedImage(f"{what}: the layout's index names no image. Export it again")
    if not reference.tag and len({one.name for one in offered}) > 1:
        there = ", ".join(sorted(one.name for one in offered))
        raise ImageNotFound(f"{what}: the layout has several images. Name one of them, {what}:NAME: {there}")
    return documents.for_platform(index, platform, what)


def read(blob: BlobFile) -> bytes:
    """The bytes of a document. Raises `TooLarge` before they are read."""
    with blob.path.open("rb") as file:
        file.seek(blob.offset)
        return file.read(min(blob.size, documents.MAX_DOCUMENT + 1))


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
