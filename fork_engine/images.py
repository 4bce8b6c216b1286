"""Folders taken in as they are: root file systems that worlds stand on, and what processes were dumped as."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError, ImageError, WorkspaceError
from ramify.fork_engine.importer import import_folder
from ramify.fork_engine.layers import Layers
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.scan import scan_tree
from ramify.fork_engine.sealing import Upper, take_upper
from ramify.fork_engine.tars import unpack
from ramify.fork_engine.types import Entry, EntryKind, LayerId
from ramify.fork_engine.view import View


def import_image(path: Path, layers: Layers) -> Manifest:
    """A root file system's layer. Raises `ImageError`. The caller holds the store's lock."""
    if path.is_dir():
        try:
            return import_folder(path, layers)[0]
        except WorkspaceError as error:
            raise ImageError(str(error)) from None
    if not path.is_file():
        raise ImageError(f"{path}: no folder and no tar. Name the folder, or the tar, of a root file system")
    with layers.folder.temporary() as aside:
        (aside / "root").mkdir()
        unpack(path, aside / "root")
        return _moved(aside / "root", layers, {})


def _moved(folder: Path, layers: Layers, known: Mapping[str, Entry]) -> Manifest:
    scan = scan_tree(folder, known)
    made = Manifest(scan.entries, scan.root)
    return take_upper(Upper(folder, scan, made, View(made)), layers, move=True)


def adopt_folder(folder: Path, images: Layers, like: LayerId) -> Manifest:
    """Move a folder of process images in. Raises `ForkEngineError` where it holds what cannot be kept.

    `like`: an image, files of which it may share by hard links: these are not read again.
    """
    for found in folder.rglob("*"):
        if not (found.is_dir() or found.is_file()) or found.is_symlink():
            raise ForkEngineError(f"{found}: neither a file nor a folder, which is all that process images are")
    made = _moved(folder, images, _shared(folder, images, like) if like and like in images else {})
    os.utime(images.fs(made.id).parent)  # as new, whoever made it first: see blobs.GRACE_S
    return made


def _shared(folder: Path, images: Layers, like: LayerId) -> dict[str, Entry]:
    """What of a folder is the same file as one of an image."""
    there = images.fs(like)
    files = {
        _file(there / path): entry
        for path, entry in images.manifest(like).entries.items()
        if entry.kind is EntryKind.FILE
    }
    mine = ((path, _file(path)) for path in folder.rglob("*"))
    return {str(path.relative_to(folder)): files[file] for path, file in mine if file in files}


def _file(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return (found.st_dev, found.st_ino)
