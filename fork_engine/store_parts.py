"""The open parts of a store (`OpenStore`), and what a snapshot needs of them. Checks, garbage collection and the
remote tier work with these instead of with whole snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramify.fork_engine.layers import Layers
from ramify.fork_engine.snapshots import Blobs, Snapshots
from ramify.fork_engine.store_folder import StoreFolder
from ramify.fork_engine.types import LayerId, Snapshot


class Part(StrEnum):
    """The parts of a store, by the names of their folders."""

    LAYERS = "layers"
    IMAGES = "images"  # process images; an OCI image is layers
    BLOBS = "blobs"
    SNAPSHOTS = "snapshots"
    INDEX = "index"
    TMP = "tmp"
    STORE = "store"  # the top folder itself


@dataclass(frozen=True, slots=True)
class OpenStore:
    """The open parts of a store."""

    folder: StoreFolder
    layers: Layers
    images: Layers
    blobs: Blobs
    snapshots: Snapshots

    def trees(self) -> tuple[tuple[Part, Layers], ...]:
        return ((Part.LAYERS, self.layers), (Part.IMAGES, self.images))

    def bytes_needed(self, snapshot: Snapshot) -> dict[str, int]:
        """Return the bytes of everything that a snapshot needs, by names that are equal for snapshots that share it.

        A layer or a blob has one name. Process images share files by hard links, so each of their files has its own.
        Raises `SnapshotCorrupt` if something is missing.
        """
        sizes: dict[str, int] = {}
        for part, name in needed_by(snapshot):
            if part is Part.LAYERS:
                sizes[f"{part}/{name}"] = self.layers.size(LayerId(name))
            elif part is Part.BLOBS:
                sizes[f"{part}/{name}"] = self.blobs.size(name)
            else:
                sizes |= {f"{part}/inode {inode}": size for inode, size in self.images.files(LayerId(name)).items()}
        return sizes


def needed_by(snapshot: Snapshot) -> set[tuple[Part, str]]:
    """Return every object that a snapshot needs to be restored."""
    trees = set(snapshot.all_layers)
    kept = {(Part.LAYERS, str(layer)) for layer in trees}
    if snapshot.processes.image:
        kept.add((Part.IMAGES, snapshot.processes.image))
    kept |= {(Part.BLOBS, blob) for blob in snapshot.processes.blobs}
    return kept
