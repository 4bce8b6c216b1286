"""Pull images into a store: fetch the layers at once, import each once, and save a snapshot over them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from ramify import paths
from ramify.fork_engine import errors as fork_errors
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.importer import implied_modes
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import LayerId
from ramify.fork_engine.view import is_folder_in_stack
from ramify.images import local_images
from ramify.images.catalogue import Catalogue, Image, LayerRecord, StoredLayer
from ramify.images.documents import Platform
from ramify.images.errors import DamagedImage, TooLarge
from ramify.images.references import ImageReference, SourceKind
from ramify.images.sources import BlobFile, ImageLimits, LayerBlob, LayerStream, Progress, SourceImage

if TYPE_CHECKING:
    from ramify.images.registry import Pulling

_ATTEMPTS = 3  # at an image whose layers a garbage collection takes while it is pulled


class ImageLibrary:
    """The images of one home, and its store. `pins`: hold off garbage collections. `clock`: Unix seconds.
    `platform`: what images must be for; this machine by default."""

    def __init__(
        self,
        store: SnapshotStore,
        catalogue: Catalogue,
        pins: Pins,
        *,
        clock: Callable[[], float] = time.time,
        limits: ImageLimits = ImageLimits(),  # noqa: B008  # immutable
        platform: Platform | None = None,
        pulling: Pulling | None = None,
    ) -> None:
        self._store, self.catalogue, self._pins = store, catalogue, pins
        self._clock, self._limits = clock, limits
        self._platform, self._pulling = platform or Platform.here(), pulling

    async def pull(self, name: str, *, progress: Progress | None = None) -> Image:
        """Get an image from its source. Layers that are here already are neither fetched nor imported.

        Raises the errors of `ImagesError`; then no image and no name was made or changed.
        """
        return await self._pull(named(name), str(named(name)), progress)

    async def build(self, context: Path, name: str, *, dockerfile: Path | None = None) -> Image:
        """Build the Dockerfile of a folder by buildah, under a name such as `task:1`. Raises `BuildFailed`, and as
        `pull` does."""
        reference = ImageReference.parse(name if "/" in name else f"localhost/{name}")
        async with local_images.built(context, dockerfile) as made:
            return await self._pull(ImageReference(SourceKind.ARCHIVE, path=made), str(reference), None)

    async def _pull(self, reference: ImageReference, name: str, progress: Progress | None) -> Image:
        async with self._opened(reference) as source:
            for _ in range(_ATTEMPTS):
                layers = await self._import_all(source, progress or _silent)
                async with self._pins.held():
                    if all(self._store.has_layer(one.layer) for one in layers):
                        return await asyncio.to_thread(self._save, source, layers, name)
        raise DamagedImage(f"{reference}: `ramify gc` deleted its layers while they were imported. Pull it again")

    def _opened(self, reference: ImageReference) -> AbstractAsyncContextManager[SourceImage]:
        if reference.kind in (SourceKind.OCI, SourceKind.ARCHIVE):
            assert reference.path is not None
            if reference.path.is_dir():
                return local_images.opened_layout(reference, self._platform, self._limits)
            return local_images.opened_archive(reference, self._platform, self._limits)
        if reference.kind is SourceKind.REGISTRY:
            from ramify.images import registry  # loads httpx

            folder = self.catalogue.folder / "downloads"
            return registry.opened(reference, self._platform, self._limits, folder, self._pulling)
        return local_images.opened_in_engine(reference, self._platform, self._limits)

    async def _import_all(self, source: SourceImage, progress: Progress) -> list[StoredLayer]:
        """Import layer after layer, while those above are fetched."""
        missing = [layer for layer in source.layers if not self._might_be_here(layer)]
        fetching = {layer: asyncio.ensure_future(source.fetch(layer, progress)) for layer in dict.fromkeys(missing)}
        left, done = self._limits.image_bytes, list[StoredLayer]()
        try:
            for layer in source.layers:
                below = [one.layer for one in done]
                found = await asyncio.to_thread(self._find, layer, below)
                if found is None:
                    limit = min(left, self._limits.layer_bytes)
                    blob = await (fetching[layer] if layer in fetching else source.fetch(layer, progress))
                    try:
                        found = await asyncio.to_thread(self._import, layer, blob, below, limit, source.name)
                    except FileNotFoundError:  # another pull of the same layer finished and removed its download
                        found = await asyncio.to_thread(self._find, layer, below)
                        if found is None:
                            blob = await source.fetch(layer, progress)
                            found = await asyncio.to_thread(self._import, layer, blob, below, limit, source.name)
                left -= found.bytes
                if left < 0:
                    raise TooLarge(f"{source.name}: its layers have more than {self._limits.image_bytes} bytes")
                done.append(found)
        finally:
            for task in fetching.values():
                task.cancel()
            await asyncio.gather(*fetching.values(), return_exceptions=True)
        return done

    def _might_be_here(self, layer: LayerBlob) -> bool:
        record = self.catalogue.layer(layer.diff_id)
        return record is not None and any(map(self._store.has_layer, record.layers.values()))

    def _find(self, layer: LayerBlob, below: list[LayerId]) -> StoredLayer | None:
        """The store's layer for an image's layer over those below it."""
        record = self.catalogue.layer(layer.diff_id)
        if record is None or not all(map(self._store.has_layer, below)):
            return None
        modes = implied_modes(frozenset(record.implied), self._store.layer_dirs(below))
        made = record.layers.get(_variant(modes))
        return StoredLayer(layer.diff_id, made, record.bytes) if made and self._store.has_layer(made) else None

    def _import(self, layer: LayerBlob, blob: BlobFile, below: list[LayerId], limit: int, image: str) -> StoredLayer:
        name = f"{image}, layer {layer.diff_id[:19]}"
        try:
            with LayerStream(blob, layer, limit=limit, name=name) as stream:
                made = self._store.import_layer(cast("IO[bytes]", stream), below, name=name)
        except fork_errors.ImageError as error:
            raise DamagedImage(str(error)) from None
        before = self.catalogue.layer(layer.diff_id)
        layers = {**(before.layers if before is not None else {}), _variant(made.modes): made.layer}
        self.catalogue.put_layer(layer.diff_id, LayerRecord(made.bytes, tuple(sorted(made.implied)), layers))
        return StoredLayer(layer.diff_id, made.layer, made.bytes)

    def _save(self, source: SourceImage, layers: list[StoredLayer], name: str) -> Image:
        stack = [one.layer for one in layers]
        workdir = source.config.workdir.strip("/")
        cwd = f"/{workdir}" if is_folder_in_stack(self._store.layer_dirs(stack), workdir) else "/"
        snapshot = self._store.save_image(stack, source.config.env, cwd)
        image = Image(source.id, snapshot.id, source.config, tuple(layers), self._clock(), (name,))
        self.catalogue.put(image, name)
        return self.catalogue.get(name)


def named(name: str) -> ImageReference:
    """The reference that a name stands for: a path of an OCI layout or an archive, or what `ImageReference` reads.

    Raises `BadReference`.
    """
    path = paths.expanded(name)
    if is_image_file(path):
        return ImageReference(SourceKind.OCI if path.is_dir() else SourceKind.ARCHIVE, path=path.absolute())
    return ImageReference.parse(name)


def is_image_file(path: Path) -> bool:
    """Whether a path is an OCI layout or an image's archive, and not a root file system."""
    try:
        if path.is_dir():
            return (path / "oci-layout").is_file() and (path / "index.json").is_file()
        return path.is_file() and local_images.is_archive(path)
    except OSError:
        return False


def _variant(modes: Mapping[str, int]) -> str:
    return hashlib.sha256(json.dumps(modes, sort_keys=True).encode()).hexdigest() if modes else ""


def _silent(layer: LayerBlob, here: int) -> None:
    pass
