"""Tars of images: the archive of `docker save` (`manifest.json`), and an OCI layout in a tar. Nothing is unpacked: a
layer is read where it lies in the archive. A compressed archive is decompressed into a temporary file first."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

from ramify.fork_engine.errors import ImageError
from ramify.fork_engine.filesystem.untar import UNREADABLE, BoundedHeaders, members_of
from ramify.fork_engine.store_folder import translate_disk_errors
from ramify.images import documents, layout
from ramify.images.documents import Platform
from ramify.images.errors import DamagedImage, ImageNotFound, TooLarge
from ramify.images.references import DIGEST, ImageReference
from ramify.images.sources import BlobFile, ImageLimits, LayerBlob, Progress, SourceImage, matched

_MOST_MEMBERS = 100_000
_MOST_LINKS = 8  # one after the other
_GZIP = b"\x1f\x8b"


@asynccontextmanager
async def opened(reference: ImageReference, platform: Platform, limits: ImageLimits) -> AsyncIterator[SourceImage]:
    """The image of an archive. `reference.tag` chooses among several: a name that the archive gives it.

    Raises `ImageNotFound`, `WrongPlatform`, `DamagedImage`, `TooLarge`.
    """
    assert reference.path is not None
    with tempfile.TemporaryDirectory(prefix="ramify-") as aside:
        yield await asyncio.to_thread(_opened, reference, platform, limits, Path(aside))


def _opened(reference: ImageReference, platform: Platform, limits: ImageLimits, aside: Path) -> SourceImage:
    assert reference.path is not None
    archive = _Archive(_plain(reference.path, aside, limits))
    if "manifest.json" in archive:
        return _of_docker_save(archive, reference, platform, limits)
    if "index.json" in archive:
        return layout.image_of(archive.locate, reference, platform, limits)
    raise ImageNotFound(
        f"{reference.path}: neither an archive of `docker save` nor an OCI layout. Name one, or a root file system"
    )


def is_archive(path: Path) -> bool:
    """Whether a file is an image's archive, and not the tar of a root file system. Reads its beginning."""
    try:
        with tarfile.open(path, tarinfo=BoundedHeaders) as tar:
            for count, member in enumerate(members_of(tar)):
                name = _normal(member.name)
                if name in ("manifest.json", "index.json", "oci-layout", "repositories"):
                    return True
                if count > 2000 or not (name.startswith("blobs") or len(PurePosixPath(name).parts) <= 2):
                    return False
    except (*UNREADABLE, ImageError, OSError, zlib.error):
        return False
    return False


class _Archive:
    """Where the members of an uncompressed tar lie in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, BlobFile] = {}
        self._links: dict[str, str] = {}
        try:
            with tarfile.open(path, "r:", tarinfo=BoundedHeaders) as tar:
                for count, member in enumerate(members_of(tar)):
                    if count > _MOST_MEMBERS:
                        raise TooLarge(f"{path}: more than {_MOST_MEMBERS} members, which no image's archive has")
                    name = _normal(member.name)
                    if member.issym():
                        self._links[name] = _normal(str(PurePosixPath(name).parent / member.linkname))
                    elif member.islnk():
                        self._links[name] = _normal(member.linkname)
                    elif member.isreg():
                        self._files[name] = BlobFile(path, member.offset_data, member.size)
        except (*UNREADABLE, ImageError) as error:
            raise DamagedImage(f"{path}: not a complete tar ({error}). Save it again") from None
        except OSError as error:
            raise ImageNotFound(f"{path}: {error.strerror or error}. Name an image's archive") from None

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def locate(self, name: str) -> BlobFile:
        at = _normal(name)
        for _ in range(_MOST_LINKS):
            if at not in self._links:
                break
            at = self._links[at]
        if at not in self._files:
            raise DamagedImage(f"{self._path}: it has no member {name!r}, which it names. Save it again")
        return self._files[at]


def _normal(name: str) -> str:
    """A member's path: no leading "./", and ".." resolved inside the archive."""
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _plain(path: Path, aside: Path, limits: ImageLimits) -> Path:
    """The archive itself, or a decompressed copy of it."""
    try:
        with path.open("rb") as file:
            if file.read(2) != _GZIP:
                return path
        plain = aside / "archive.tar"
        with translate_disk_errors(aside), gzip.open(path) as packed, plain.open("wb") as out:
            while chunk := packed.read(1 << 20):
                if out.tell() + len(chunk) > limits.image_bytes:
                    raise TooLarge(f"{path}: it unpacks to more than {limits.image_bytes} bytes. Raise ImageLimits")
                out.write(chunk)
        return plain
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedImage(f"{path}: it does not decompress ({type(error).__name__}). Save it again") from None
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise ImageNotFound(f"{path}: {error.strerror}. Name an image's archive") from None


def _of_docker_save(
    archive: _Archive, reference: ImageReference, platform: Platform, limits: ImageLimits
) -> SourceImage:
    what = str(reference)
    entry = _entry(archive, reference)
    at, paths = entry.get("Config"), entry.get("Layers")
    if not isinstance(at, str) or not isinstance(paths, list) or not all(isinstance(one, str) for one in paths):
        raise DamagedImage(f"{what}: its manifest.json has no Config or no Layers. Save it again")
    data = layout.read(archive.locate(at))
    named = f"sha256:{PurePosixPath(at).name.removesuffix('.json')}"
    if DIGEST.fullmatch(named):  # both spellings name the configuration by its digest
        documents.verified(data, named, what)
    config = documents.config_of(data, platform, what)
    files = [archive.locate(path) for path in paths]
    layers = matched(config, [("", file.size) for file in files], what, limits)
    by_layer = dict(zip(layers, files, strict=True))

    async def fetch(layer: LayerBlob, progress: Progress) -> BlobFile:
        progress(layer, layer.size)
        return by_layer[layer]

    return SourceImage(f"sha256:{hashlib.sha256(data).hexdigest()}", config, layers, fetch, what)


def _entry(archive: _Archive, reference: ImageReference) -> dict[str, object]:
    what = str(reference)
    raw = documents.parse(b'{"images":' + layout.read(archive.locate("manifest.json")) + b"}", what)["images"]
    if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw) or not raw:
        raise DamagedImage(f"{what}: its manifest.json names no image. Save it again")
    names = [[str(tag) for tag in one.get("RepoTags") or ()] for one in raw]
    if reference.tag:
        for one, tags in zip(raw, names, strict=True):
            if any(tag == reference.tag or tag.endswith((f"/{reference.tag}", f":{reference.tag}")) for tag in tags):
                return dict(one)
    elif len(raw) == 1:
        return dict(raw[0])
    there = ", ".join(sorted(tag for tags in names for tag in tags)) or "no names"
    raise ImageNotFound(f"{what}: name one of the archive's images, {reference.kind}:PATH:NAME: {there}")
