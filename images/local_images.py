"""Images of this machine: OCI layouts, archives, and what other programs here have or build.

- An OCI image layout is a folder with `oci-layout`, `index.json` and `blobs/` (image-spec, image-layout.md).
- An archive is a tar: of `docker save` (`manifest.json`), or of an OCI layout. Nothing is unpacked: a layer is read
  where it lies in the archive. A compressed archive is decompressed into a temporary file first.
- Other programs are asked by their command lines: docker and podman save an image, and buildah, which needs no
  daemon, builds a Dockerfile. Each hands over an archive.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import lzma
import re
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ramify.fork_engine.errors import ImageError
from ramify.fork_engine.filesystem.untar import UNREADABLE, BoundedHeaders, members_of
from ramify.fork_engine.store_folder import translate_disk_errors
from ramify.images import documents
from ramify.images.documents import Descriptor, Platform
from ramify.images.errors import BuildFailed, DamagedImage, EngineUnavailable, ImageNotFound, TooLarge
from ramify.images.references import DIGEST, ImageReference, SourceKind
from ramify.images.sources import BlobFile, ImageLimits, LayerBlob, Progress, SourceImage, matched

Locate = Callable[[str], BlobFile]
"""The file of a layout by its path in it. Raises `ImageNotFound`."""

MOST_NESTED = 4  # indexes within each other


@asynccontextmanager
async def opened_layout(
    reference: ImageReference, platform: Platform, limits: ImageLimits
) -> AsyncIterator[SourceImage]:
    """The image of a layout that is a folder. `reference.tag` chooses among several.

    Raises `ImageNotFound`, `WrongPlatform`, `DamagedImage`.
    """
    folder = reference.path
    assert folder is not None

    def locate(path: str) -> BlobFile:
        try:
            found = (folder / path).stat()
        except OSError as error:
            raise ImageNotFound(f"{folder / path}: {error.strerror}. Name a complete OCI layout") from None
        if not stat.S_ISREG(found.st_mode):  # to open a FIFO would block
            raise DamagedImage(f"{folder / path}: not a regular file. Name a complete OCI layout")
        return BlobFile(folder / path, 0, found.st_size)

    yield await asyncio.to_thread(image_of, locate, reference, platform, limits)


def image_of(locate: Locate, reference: ImageReference, platform: Platform, limits: ImageLimits) -> SourceImage:
    what = str(reference)

    def document(descriptor: Descriptor) -> bytes:
        return documents.verified(read_document(locate(_blob(descriptor.digest))), descriptor.digest, what)

    index = documents.parse(read_document(locate("index.json")), what)
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


def read_document(blob: BlobFile) -> bytes:
    """The bytes of a document. Raises `TooLarge` before they are read."""
    with blob.path.open("rb") as file:
        file.seek(blob.offset)
        return file.read(min(blob.size, documents.MAX_DOCUMENT + 1))


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


_MOST_MEMBERS, _MOST_TEXT = 100_000, 16 << 20  # of an archive, and characters of their names
_MOST_READ = 1 << 30  # bytes that are decompressed to see what a file is
_SURE = re.compile(r"blobs/sha256/[0-9a-f]{64}|[0-9a-f]{64}(?:\.(?:tar|json)|/(?:VERSION|json|layer\.tar))")
"""Members that only an image's archive has: it may name its image last, after gigabytes of layers."""
_MOST_LINKS = 8  # one after the other
_GZIP = b"\x1f\x8b"


@asynccontextmanager
async def opened_archive(
    reference: ImageReference, platform: Platform, limits: ImageLimits
) -> AsyncIterator[SourceImage]:
    """The image of an archive. `reference.tag` chooses among several: a name that the archive gives it.

    Raises `ImageNotFound`, `WrongPlatform`, `DamagedImage`, `TooLarge`.
    """
    assert reference.path is not None
    with tempfile.TemporaryDirectory(prefix="ramify-") as aside:
        yield await asyncio.to_thread(_image_of_archive, reference, platform, limits, Path(aside))


def _image_of_archive(reference: ImageReference, platform: Platform, limits: ImageLimits, aside: Path) -> SourceImage:
    assert reference.path is not None
    archive = _Archive(_plain(reference.path, aside, limits))
    if "manifest.json" in archive:
        return _of_docker_save(archive, reference, platform, limits)
    if "index.json" in archive:
        return image_of(archive.locate, reference, platform, limits)
    raise ImageNotFound(
        f"{reference.path}: neither an archive of `docker save` nor an OCI layout. Name one, or a root file system"
    )


def is_archive(path: Path) -> bool:
    """Whether a file is an image's archive, and not the tar of a root file system. Reads its beginning."""
    try:
        with tarfile.open(path, tarinfo=BoundedHeaders) as tar:
            packed = not isinstance(tar.fileobj, io.BufferedReader)
            for count, member in enumerate(members_of(tar)):
                name = _normal(member.name)
                if name in ("manifest.json", "index.json", "oci-layout", "repositories") or _SURE.fullmatch(name):
                    return True
                if packed and member.offset_data + member.size > _MOST_READ:
                    return False
                if count > 2000 or not (name.startswith("blobs") or len(PurePosixPath(name).parts) <= 2):
                    return False
    except (*UNREADABLE, ImageError, OSError, zlib.error, lzma.LZMAError):
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
                text = 0
                for count, member in enumerate(members_of(tar)):
                    text += len(member.name) + len(member.linkname)
                    if count > _MOST_MEMBERS or text > _MOST_TEXT:
                        raise TooLarge(
                            f"{path}: more than {_MOST_MEMBERS} members, or names of more than {_MOST_TEXT} "
                            "characters, which no image's archive has"
                        )
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
            del parts[-1:]
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
    data = read_document(archive.locate(at))
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
    raw = documents.parse(b'{"images":' + read_document(archive.locate("manifest.json")) + b"}", what)["images"]
    if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw) or not raw:
        raise DamagedImage(f"{what}: its manifest.json names no image. Save it again")
    listed = [one.get("RepoTags") for one in raw]
    names = [list(map(str, tags)) if isinstance(tags, list) else [] for tags in listed]
    if reference.tag:
        for one, tags in zip(raw, names, strict=True):
            if any(tag == reference.tag or tag.endswith((f"/{reference.tag}", f":{reference.tag}")) for tag in tags):
                return dict(one)
    elif len(raw) == 1:
        return dict(raw[0])
    there = ", ".join(sorted(tag for tags in names for tag in tags)) or "no names"
    raise ImageNotFound(f"{what}: name one of the archive's images, {reference.kind}:PATH:NAME: {there}")


_ABSENT = ("no such image", "image not known", "does not exist", "no such object")


@asynccontextmanager
async def opened_in_engine(
    reference: ImageReference, platform: Platform, limits: ImageLimits
) -> AsyncIterator[SourceImage]:
    """The image that the engine has under this name, saved into a temporary archive.

    Raises `EngineUnavailable`, `ImageNotFound`, `WrongPlatform`.
    """
    with tempfile.TemporaryDirectory(prefix="ramify-") as aside:
        saved = Path(aside) / "image.tar"
        await _engine(reference, "save", "--output", str(saved), "--", reference.repository)
        inside = replace(reference, kind=SourceKind.ARCHIVE, path=saved, repository="")
        async with opened_archive(inside, platform, limits) as image:
            yield replace(image, name=str(reference))


async def _engine(reference: ImageReference, *words: str) -> None:
    program = shutil.which(reference.kind.value)
    if program is None:
        raise EngineUnavailable(
            f"{reference}: {reference.kind} is not installed. Install it, or name a registry or an archive"
        )
    status, printed = await run_program(program, *words)
    if status:
        why = printed[-500:]
        if any(sign in why.lower() for sign in _ABSENT):
            raise ImageNotFound(f"{reference}: {reference.kind} has no such image. Pull or build it there first")
        raise EngineUnavailable(
            f"{reference}: {reference.kind} failed: {why}. Start it, or name the image in a registry"
        )


_TOLD = 2000  # characters of a failed build's output that the error shows


@asynccontextmanager
async def built(context: Path, dockerfile: Path | None = None) -> AsyncIterator[Path]:
    """An OCI archive of the image that the Dockerfile in `context` builds; removed at the end of the block.

    Buildah uses its own storage, caches and settings. Raises `BuildFailed`.
    """
    program = shutil.which("buildah")
    if program is None:
        raise BuildFailed(
            f"{context}: buildah, which builds Dockerfiles, is not installed. Install it (apt-get install buildah), "
            "or build elsewhere and pull the archive of `docker save`"
        )
    if not context.is_dir():
        raise BuildFailed(f"{context}: not a folder. Name the folder that holds the Dockerfile")
    with tempfile.TemporaryDirectory(prefix="ramify-") as aside:
        image, archive = Path(aside) / "id", Path(aside) / "image.tar"
        file = () if dockerfile is None else ("--file", str(dockerfile))
        await _buildah(
            context, program, "build", "--layers", "--format", "oci", "--iidfile", str(image), *file, str(context)
        )
        await _buildah(context, program, "push", image.read_text().strip(), f"oci-archive:{archive}")
        yield archive


async def _buildah(context: Path, program: str, *words: str) -> None:
    status, printed = await run_program(program, *words)
    if status:
        raise BuildFailed(
            f"{context}: `buildah {words[0]}` failed:\n{printed[-_TOLD:]}\nMend the Dockerfile or buildah's set-up"
        )


async def run_program(program: str, *words: str) -> tuple[int, str]:
    """Return the exit status, and standard output and error together. The program is killed if the caller is
    cancelled. Raises OSError if it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        program,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None  # it has ended
    return process.returncode, printed.decode(errors="replace").strip()
