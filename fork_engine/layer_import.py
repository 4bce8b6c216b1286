"""Import the layers of OCI images, and stack them: one layer of an image is one layer of the store.

A layer of an image may leave out the folders above its files. Such a folder has the mode that the layers below give
it, so the same tar makes another layer over other modes, which is rare: `ImportedLayer.implied` names such folders.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.filesystem.scan import scan_upper
from ramify.fork_engine.filesystem.stacked_folders import find_in_stack
from ramify.fork_engine.filesystem.untar import unpack_layer
from ramify.fork_engine.layers import Layers
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.seal import ReadUpper, make_layer_from_upper
from ramify.fork_engine.types import Entry, EntryKind, LayerId
from ramify.fork_engine.view import View

IMPLIED_MODE = 0o755


@dataclass(frozen=True, slots=True)
class ImportedLayer:
    layer: LayerId
    bytes: int  # of its files, hard links counted once
    implied: frozenset[str]  # folders that the tar does not declare; "" is the top one
    modes: Mapping[str, int]  # those of them that got another mode than 0755 from the layers below


def import_layer(
    stream: IO[bytes], below: Sequence[LayerId], layers: Layers, *, name: str, room: int | None
) -> ImportedLayer:
    """Unpack an uncompressed tar over the layers `below` (lowest first). Reads the stream to its end, where it may
    raise: then no layer is made. Raises `ImageError`. The caller holds the store's lock."""
    with layers.folder.temporary() as aside:
        tree = aside / "root"
        tree.mkdir()
        implied = unpack_layer(stream, tree, name=name, room=room)
        while stream.read(1 << 20):
            pass
        modes = implied_modes(implied, [layers.fs(layer) for layer in below])
        for path, mode in modes.items():
            (tree / path).chmod(mode)
        scan = scan_upper(tree)
        made = Manifest(scan.entries, scan.root)
        manifest = make_layer_from_upper(ReadUpper(tree, scan, made, View(made)), layers, move=True)
    size = sum(entry.size for entry in manifest.entries.values() if not entry.link)
    return ImportedLayer(manifest.id, size, implied, modes)


def implied_modes(implied: frozenset[str], below: Sequence[Path]) -> dict[str, int]:
    """The modes, other than 0755, that folders have in a stack of layer folders (lowest first)."""
    modes = {}
    for path in sorted(implied):
        found = find_in_stack(below, path)
        status = None if found is None else found.lstat()
        if status is not None and stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) != IMPLIED_MODE:
            modes[path] = stat.S_IMODE(status.st_mode)
    return modes


def empty_layer(layers: Layers) -> Manifest:
    """The layer of an empty workspace. The caller holds the store's lock."""
    return layers.write(Manifest({}, Entry(EntryKind.DIR, IMPLIED_MODE)), _no_file)


def _no_file(path: str, entry: Entry, parent: int, name: str) -> None:
    raise ForkEngineError(f"an empty layer has no {path}")
