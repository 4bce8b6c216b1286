"""What users write to name an image: `python:3.12`, `localhost:5000/task@sha256:…`, `oci:PATH`, `docker:NAME`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ramify import paths
from ramify.images.errors import BadReference

DEFAULT_REGISTRY, DEFAULT_NAMESPACE = "docker.io", "library"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_REGISTRY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 512


class SourceKind(StrEnum):
    REGISTRY = "registry"
    OCI = "oci"  # a layout: a folder, or a tar of one
    ARCHIVE = "docker-archive"  # of `docker save`
    DOCKER = "docker"
    PODMAN = "podman"


_PREFIXES = {
    "oci": SourceKind.OCI,
    "oci-archive": SourceKind.OCI,
    "docker-archive": SourceKind.ARCHIVE,
    "docker-daemon": SourceKind.DOCKER,
    "docker": SourceKind.DOCKER,
    "podman": SourceKind.PODMAN,
}
"""As skopeo spells them, and the engines' own names."""


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A name of an image, in full. `path`: of a layout or an archive. `tag` and `digest`: "" for none."""

    kind: SourceKind
    registry: str = ""
    repository: str = ""  # of an engine: the whole name, as the engine knows it
    tag: str = ""
    digest: str = ""
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Read a reference. A name without a prefix is a registry's, `docker.io/library/…:latest` by default.

        Raises `BadReference`.
        """
        if not text or len(text) > _LONGEST or any(ord(letter) < 33 or ord(letter) == 127 for letter in text):
            raise _bad(text, "it is empty, too long, or has blanks or control characters")
        prefix, colon, rest = text.partition(":")
        if colon and prefix in _PREFIXES and not _is_tag_of(prefix, rest):
            return _prefixed(_PREFIXES[prefix], rest, text)
        if prefix == "sha256":
            raise _bad(text, "it is an id, and no image here has it")
        return _of_registry(text)

    @property
    def at(self) -> str:
        """What a registry is asked for: the digest if there is one, else the tag."""
        return self.digest or self.tag

    def __str__(self) -> str:
        if self.kind is SourceKind.REGISTRY:
            return f"{self.registry}/{self.repository}{self._ending}"
        if self.path is not None:
            return f"{self.kind}:{self.path}{self._ending}"
        return f"{self.kind}:{self.repository}"

    @property
    def _ending(self) -> str:
        return (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def _is_tag_of(prefix: str, rest: str) -> bool:
    """Whether `docker:27` and the like mean the image of that name in the default registry."""
    return prefix == "docker" and re.fullmatch(r"[0-9]+(\.[0-9]+)*(-[a-z0-9.-]+)?|latest|dind|cli", rest) is not None


def _prefixed(kind: SourceKind, rest: str, text: str) -> ImageReference:
    if not rest:
        raise _bad(text, "nothing follows the prefix")
    if kind in (SourceKind.DOCKER, SourceKind.PODMAN):
        if rest.startswith("-"):
            raise _bad(text, "an engine's name of an image does not begin with '-'")
        return ImageReference(kind, repository=rest)
    path, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        path, tag = rest, ""
    return ImageReference(kind, tag=tag, path=paths.expanded(path).absolute())


def _of_registry(text: str) -> ImageReference:
    name, at, digest = text.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise _bad(text, "after '@' must come sha256: and 64 hexadecimal digits")
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first.startswith("[")):
        registry, name = first, rest
    else:
        registry = DEFAULT_REGISTRY
    name, colon, tag = name.partition(":")
    if registry == DEFAULT_REGISTRY and "/" not in name:
        name = f"{DEFAULT_NAMESPACE}/{name}"
    if not _REGISTRY.fullmatch(registry):
        raise _bad(text, f"{registry!r} is not the address of a registry")
    if not _REPOSITORY.fullmatch(name):
        raise _bad(text, "a repository's name has lower-case letters, digits, and '.', '_', '-', '/' between them")
    if colon and not _TAG.fullmatch(tag):
        raise _bad(text, f"{tag!r} is not a tag")
    return ImageReference(SourceKind.REGISTRY, registry, name, tag or ("" if digest else "latest"), digest)


def _bad(text: str, why: str) -> BadReference:
    shown = text if len(text) <= 100 else text[:100] + "…"
    return BadReference(
        f"{shown!r} names no image: {why}. Write NAME:TAG, REGISTRY/NAME@DIGEST, oci:PATH or docker:NAME"
    )
