"""Which images, names and layers a home has: one small JSON file each, in `HOME/images`.

    images/HEX.json   an image: its configuration, its layers, and the snapshot that stands for it
    names/HEX.json    a name and the image that it stands for (HEX: the digest of the name)
    layers/HEX.json   a layer of an image (HEX: its diff_id) and the store's layers that were made of it

A file is written whole and renamed into place, so a crash leaves the old or the new one. `ramify gc` keeps the
snapshots of all images. A layer's file may name layers that are gone: whoever reads it asks the store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramify import paths
from ramify.fork_engine.store_folder import translate_disk_errors, write_durably
from ramify.fork_engine.types import LayerId, SnapshotId
from ramify.images.documents import ImageConfig, Platform
from ramify.images.errors import BadReference, DamagedImage, ImageNotFound
from ramify.images.references import DIGEST, ImageReference

_SHORTEST_ID = 6  # digits of an id that may stand for it


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of an image, in the store. `bytes`: of its files."""

    diff_id: str
    layer: LayerId
    bytes: int


@dataclass(frozen=True, slots=True)
class Image:
    """An image. `id`: "sha256:…", the digest of its configuration. `created_at`: of the pull, Unix seconds."""

    id: str
    snapshot: SnapshotId
    config: ImageConfig
    layers: tuple[StoredLayer, ...]
    created_at: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """What was made of a layer. `layers`: by the digest of the modes that undeclared folders got (see
    `fork_engine/importer.py`), "" for none."""

    bytes: int
    implied: tuple[str, ...] = ()
    layers: Mapping[str, LayerId] = field(default_factory=dict)


class Catalogue:
    """The images of one home. `folder`: where they are kept; it need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, name: str) -> Image:
        """An image by its name, or its id (its first 6 digits are enough). Raises `ImageNotFound`, `DamagedImage`."""
        digits = name.removeprefix("sha256:")
        try:
            said = _read(self._name_file(str(ImageReference.parse(name))))
            return self._image(str(said["image"]).removeprefix("sha256:"))
        except (FileNotFoundError, BadReference):
            found = [id for id in self._ids() if len(digits) >= _SHORTEST_ID and id.startswith(digits)]
        if len(found) != 1:
            why = f"{len(found)} images begin with it" if found else "pull it: `ramify image pull`"
            raise ImageNotFound(f"{name!r} is not an image in {self.folder.parent}: {why}")
        return self._image(found[0])

    def all(self) -> list[Image]:
        """Every image, newest first."""
        found = []
        for id in self._ids():
            with suppress(ImageNotFound):  # it was removed meanwhile
                found.append(self._image(id))
        return sorted(found, key=lambda one: (-one.created_at, one.id))

    def snapshots(self) -> set[SnapshotId]:
        """Every snapshot that stands for an image."""
        return {one.snapshot for one in self.all()}

    def put(self, image: Image, name: str) -> None:
        """Store an image and let the name stand for it, durably."""
        fields = asdict(image)
        del fields["names"]
        self._write(self._image_file(image.id.removeprefix("sha256:")), fields)
        self._write(self._name_file(name), {"name": name, "image": image.id})

    def remove(self, name: str) -> Image:
        """Forget a name, and its image if it was the last name; or, by its id, an image and all its names. What it
        had on disk stays until `ramify gc`. Raises `ImageNotFound`."""
        image = self.get(name)
        given = [one for one in image.names if one == _full(name)] or list(image.names)
        for one in given:
            self._name_file(one).unlink(missing_ok=True)
        if set(given) == set(image.names):
            self._image_file(image.id.removeprefix("sha256:")).unlink(missing_ok=True)
        return image

    def layer(self, diff_id: str) -> LayerRecord | None:
        try:
            said = _read(self._layer_file(diff_id))
            return LayerRecord(said["bytes"], tuple(said["implied"]), said["layers"])
        except (FileNotFoundError, DamagedImage, KeyError):
            return None  # it costs another import

    def put_layer(self, diff_id: str, record: LayerRecord) -> None:
        self._write(self._layer_file(diff_id), asdict(record))

    def _image(self, digits: str) -> Image:
        path = self._image_file(digits)
        try:
            said = _read(path)
        except FileNotFoundError:
            raise ImageNotFound(f"{path} is missing. Pull the image again") from None
        try:
            config = {**said["config"], "platform": Platform(**said["config"]["platform"])}
            for key in ("diff_ids", "entrypoint", "cmd", "exposed"):
                config[key] = tuple(config[key])
            layers = tuple(StoredLayer(**one) for one in said["layers"])
            names = tuple(sorted(name for name, id in self._names() if id == said["id"]))
            return Image(
                said["id"], said["snapshot"], ImageConfig(**config), layers, float(said["created_at"]), names
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedImage(f"{path} is damaged ({error}). Delete it, and pull the image again") from None

    def _ids(self) -> list[str]:
        folder = self.folder / "images"
        found = (path.stem for path in folder.glob("*.json"))
        return sorted(id for id in found if DIGEST.fullmatch(f"sha256:{id}"))

    def _names(self) -> Iterator[tuple[str, str]]:
        for path in sorted((self.folder / "names").glob("*.json")):
            if not path.name.startswith("."):
                try:
                    said = _read(path)
                except FileNotFoundError:  # it was removed meanwhile
                    continue
                yield str(said.get("name")), str(said.get("image"))

    def _image_file(self, digits: str) -> Path:
        return self.folder / "images" / f"{digits}.json"

    def _name_file(self, name: str) -> Path:
        return self.folder / "names" / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _layer_file(self, diff_id: str) -> Path:
        return self.folder / "layers" / f"{diff_id.removeprefix('sha256:')}.json"

    def _write(self, path: Path, fields: object) -> None:
        with translate_disk_errors(self.folder):
            paths.make_private(path.parent)
            write_durably(path, json.dumps(fields))


def _full(name: str) -> str:
    try:
        return str(ImageReference.parse(name))
    except BadReference:
        return name


def _read(path: Path) -> dict[str, Any]:
    """Raises `FileNotFoundError`, `DamagedImage`."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise DamagedImage(f"{path} is damaged ({error}). Delete it, and pull the image again") from None
    if not isinstance(found, dict):
        raise DamagedImage(f"{path} is damaged. Delete it, and pull the image again")
    return found
