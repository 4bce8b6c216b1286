"""The documents of an image, read and checked: index, manifest, configuration (OCI image-spec 1.1, Docker schema 2).

They come from elsewhere and may be hostile: nothing is used before its type was checked.
"""

from __future__ import annotations

import hashlib
import json
import platform as machine
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ramify.images.errors import DamagedImage, DigestMismatch, TooLarge, WrongPlatform
from ramify.images.references import DIGEST

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST)

MAX_DOCUMENT = 8 << 20
"""Bytes of the largest document that is read."""

_ARCHITECTURES = {
    "x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "ppc64le": "ppc64le", "s390x": "s390x",
    "riscv64": "riscv64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Platform:
    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def here(cls) -> Platform:
        """This machine's, as images name it."""
        return cls("linux", _ARCHITECTURES.get(machine.machine(), machine.machine()))

    def runs(self, other: Platform) -> bool:
        """Whether an image for `other` runs here. What an image does not say is taken to fit."""
        return other.os in ("", self.os) and other.architecture in ("", self.architecture)

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob: its type, digest ("sha256:…") and size in bytes."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None
    name: str = ""  # the annotation that names an image in a layout


@dataclass(frozen=True, slots=True)
class ImageManifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image says about its use. `env` is ordered. `user`: "" for root. `exposed`: such as "8080/tcp"."""

    diff_ids: tuple[str, ...]
    platform: Platform
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def verified(data: bytes, digest: str, what: str) -> bytes:
    """The bytes, if they have the digest. Raises `DigestMismatch`."""
    if digest_of(data) != digest:
        raise DigestMismatch(
            f"{what}: its bytes do not have the digest {digest}. Do not use this image; pull it from another source"
        )
    return data


def parse(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object. Raises `DamagedImage`, `TooLarge`."""
    if len(data) > MAX_DOCUMENT:
        raise TooLarge(f"{what}: more than {MAX_DOCUMENT >> 20} MiB, which no such document has")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedImage(f"{what}: not JSON ({type(error).__name__}). Export or push the image again") from None
    if not isinstance(found, dict):
        raise _malformed(what, "it is not an object")
    return found


def manifests_of(index: Mapping[str, Any], what: str) -> list[Descriptor]:
    """The entries of an index, without those that describe other entries (attestations)."""
    found = [_descriptor(entry, what) for entry in _list(index, "manifests", what)]
    return [one for one in found if one.platform is None or one.platform.os != "unknown"]


def for_platform(index: Mapping[str, Any], wanted: Platform, what: str) -> Descriptor:
    """The entry of an index for a platform. Raises `WrongPlatform`."""
    offered = manifests_of(index, what)
    for one in offered:
        if one.platform is not None and wanted.runs(one.platform):
            return one
    if len(offered) == 1 and offered[0].platform is None:
        return offered[0]
    there = ", ".join(sorted({str(one.platform) for one in offered if one.platform is not None})) or "nothing"
    raise WrongPlatform(f"{what}: it is for {there}, and this machine is {wanted}. Build or pull it for {wanted}")


def is_index(document: Mapping[str, Any]) -> bool:
    return document.get("mediaType") in (OCI_INDEX, DOCKER_LIST) or "manifests" in document


def manifest_of(document: Mapping[str, Any], what: str) -> ImageManifest:
    if document.get("schemaVersion") == 1:
        raise DamagedImage(f"{what}: its manifest is of schema 1, which has been obsolete since 2017. Push it again")
    layers = tuple(_descriptor(entry, what) for entry in _list(document, "layers", what))
    config = document.get("config")
    if not isinstance(config, dict):
        raise _malformed(what, "it has no configuration")
    return ImageManifest(_descriptor(config, what), layers)


def config_of(data: bytes, wanted: Platform, what: str) -> ImageConfig:
    """Read an image's configuration. Raises `WrongPlatform`, `DamagedImage`."""
    raw = parse(data, what)
    found = Platform(_text(raw, "os", what), _text(raw, "architecture", what), _text(raw, "variant", what))
    if not wanted.runs(found):
        raise WrongPlatform(f"{what}: it is for {found}, and this machine is {wanted}. Build or pull it for {wanted}")
    root = raw.get("rootfs")
    if not isinstance(root, dict):
        raise _malformed(what, "its configuration has no rootfs")
    diff_ids = _texts(root, "diff_ids", what)
    if not diff_ids or not all(DIGEST.fullmatch(one) for one in diff_ids):
        raise _malformed(what, "it has no layers, or their diff_ids are not sha256 digests")
    use = raw.get("config") or {}
    if not isinstance(use, dict):
        raise _malformed(what, "its configuration is not an object")
    pairs = [one.partition("=") for one in _texts(use, "Env", what)]
    if any(_is_no_text(name + value) for name, _, value in pairs):
        raise _malformed(what, "a variable has a NUL byte, or half of a character")
    workdir, user = _text(use, "WorkingDir", what), _text(use, "User", what)
    if _is_no_text(workdir + user):
        raise _malformed(what, "its WorkingDir or User has a NUL byte, or half of a character")
    exposed = use.get("ExposedPorts") or {}
    return ImageConfig(
        diff_ids,
        found,
        {name: value for name, equals, value in pairs if equals and name},
        workdir,
        user,
        _texts(use, "Entrypoint", what),
        _texts(use, "Cmd", what),
        tuple(sorted(map(str, exposed))) if isinstance(exposed, dict) else (),
    )


def _is_no_text(value: str) -> bool:
    """Whether no process can be given it: JSON can spell a lone half of a UTF-16 pair."""
    return "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)


def _descriptor(entry: object, what: str) -> Descriptor:
    if not isinstance(entry, dict):
        raise _malformed(what, "a descriptor is not an object")
    digest, size = entry.get("digest"), entry.get("size")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise _malformed(what, f"{digest!r} is not a sha256 digest"[:200])
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise _malformed(what, f"{digest} has no size")
    made = entry.get("platform")
    notes = entry.get("annotations")
    name = notes.get("org.opencontainers.image.ref.name") if isinstance(notes, dict) else None
    return Descriptor(
        _text(entry, "mediaType", what),
        digest,
        size,
        Platform(_text(made, "os", what), _text(made, "architecture", what), _text(made, "variant", what))
        if isinstance(made, dict)
        else None,
        name if isinstance(name, str) else "",
    )


def _list(document: Mapping[str, Any], key: str, what: str) -> list[object]:
    found = document.get(key)
    if not isinstance(found, list):
        raise _malformed(what, f"it has no list {key!r}")
    return found


def _text(document: Mapping[str, Any], key: str, what: str) -> str:
    found = document.get(key)
    if found is not None and not isinstance(found, str):
        raise _malformed(what, f"{key!r} is not a text")
    return found or ""


def _texts(document: Mapping[str, Any], key: str, what: str) -> tuple[str, ...]:
    found = document.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _malformed(what, f"{key!r} is not a list of texts")
    return tuple(found)


def _malformed(what: str, why: str) -> DamagedImage:
    return DamagedImage(f"{what}: {why}. Export or push the image again")
