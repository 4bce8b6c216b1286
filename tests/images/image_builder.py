"""Builds small images by hand: OCI layouts, archives of `docker save`, and layers of any bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.images import documents
from ramify.images.documents import Platform

Files = Mapping[str, "bytes | str | tarfile.TarInfo | None"]
"""By path: a file's bytes, None for a folder, or any member."""


def layer_tar(files: Files) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                content.name = path
                tar.addfile(content)
                continue
            info = tarfile.TarInfo(path)
            info.mtime, info.mode = 1_700_000_000, 0o755
            if content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                data = content.encode() if isinstance(content, str) else content
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def squeezed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


@dataclass
class BuiltImage:
    """An image in memory: its layers' tars and blobs, its configuration, its manifest."""

    tars: list[bytes]
    settings: dict[str, Any] = field(default_factory=dict)
    platform: Platform = field(default_factory=Platform.here)
    compress: Any = squeezed

    def __post_init__(self) -> None:
        self.blobs = [self.compress(tar) for tar in self.tars]
        self.config = json.dumps(
            {
                "os": self.platform.os,
                "architecture": self.platform.architecture,
                "config": self.settings,
                "history": [{"created_by": "a test"} for _ in self.tars],
                "rootfs": {"type": "layers", "diff_ids": [sha(tar) for tar in self.tars]},
            }
        ).encode()
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": documents.OCI_MANIFEST,
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": sha(self.config),
                    "size": len(self.config),
                },
                "layers": [{"mediaType": kind, "digest": sha(one), "size": len(one)} for one in self.blobs],
            }
        ).encode()

    @property
    def documents(self) -> list[bytes]:
        return [self.config, self.manifest, *self.blobs]

    def descriptor(self, name: str = "") -> dict[str, Any]:
        return {
            "mediaType": documents.OCI_MANIFEST,
            "digest": sha(self.manifest),
            "size": len(self.manifest),
            "platform": {"os": self.platform.os, "architecture": self.platform.architecture},
            **({"annotations": {"org.opencontainers.image.ref.name": name}} if name else {}),
        }


def built(*layers: Files, **options: Any) -> BuiltImage:
    return BuiltImage([layer_tar(files) for files in layers], **options)


def write_layout(folder: Path, *images: BuiltImage, names: tuple[str, ...] = ()) -> Path:
    """An OCI layout of these images, one index over all of them."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    for image in images:
        for data in image.documents:
            (blobs / sha(data).removeprefix("sha256:")).write_bytes(data)
    given = [*names, *[""] * len(images)]
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entries = [image.descriptor(name) for image, name in zip(images, given, strict=False)]
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    return folder


def write_docker_save(path: Path, *images: BuiltImage, tags: tuple[str, ...] = (), mode: str = "w") -> Path:
    """What `docker save` writes: layers as plain tars, equal ones as links."""
    entries, there = [], set[str]()
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        for number, image in enumerate(images):
            name = f"{sha(image.config).removeprefix('sha256:')}.json"
            add(name, image.config)
            paths = []
            for depth, data in enumerate(image.tars):
                at, first = f"{number}-{depth}/layer.tar", f"{sha(data)[7:]}/layer.tar"
                if first not in there:
                    add(first, data)
                    there.add(first)
                link = tarfile.TarInfo(at)
                link.type, link.linkname = tarfile.SYMTYPE, f"../{first}"
                tar.addfile(link)
                paths.append(at)
            entries.append({"Config": name, "RepoTags": list(tags[number : number + 1]) or None, "Layers": paths})
        add("manifest.json", json.dumps(entries).encode())
    return path
