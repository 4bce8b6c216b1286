"""Images of engines, whose command line is replaced, and of Dockerfiles, by a real buildah where it is installed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ramify.images import local_images
from ramify.images.errors import BuildFailed, DamagedImage, EngineUnavailable, ImageNotFound, TooLarge
from tests.images.image_builder import built, sha, write_docker_save, write_layout


def program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is first in PATH."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


@pytest.mark.parametrize("engine", ["docker", "podman"])
async def test_an_engines_image_is_saved_and_pulled(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    image = built({"a": "1"})
    saved = write_docker_save(tmp_path / "saved.tar", image, tags=("app:1",))
    program(tmp_path, engine, f'[ "$1 $2 $4 $5" = "save --output -- app:1" ] && cp {saved} "$3"', monkeypatch)
    made = await library.pull(f"{engine}:app:1")
    assert made.id == sha(image.config) and made.names == (f"{engine}:app:1",)


async def test_engines_that_lack_the_image_or_do_not_run(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "docker", "echo 'Error: No such image: app:1' >&2; exit 1", monkeypatch)
    with pytest.raises(ImageNotFound, match="Pull or build it there"):
        await library.pull("docker:app:1")
    program(tmp_path, "docker", "echo 'Cannot connect to the daemon' >&2; exit 1", monkeypatch)
    with pytest.raises(EngineUnavailable, match="Cannot connect"):
        await library.pull("docker:app:1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="not installed"):
        await library.pull("podman:app:1")


async def test_a_dockerfile_without_buildah_or_a_folder(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed, match="apt-get install buildah"):
        await library.build(tmp_path, "task:1")
    program(tmp_path, "buildah", "echo 'unknown instruction'; exit 125", monkeypatch)
    with pytest.raises(BuildFailed, match="unknown instruction"):
        await library.build(tmp_path, "task:1")


async def test_a_dockerfile_is_built(
    library: Any, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed (apt-get install buildah)")
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{tmp_path}/run"\ngraphroot = "{tmp_path}/graph"\n'
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    base = write_layout(tmp_path / "base", built({"etc": None, "etc/os": "one"}))
    context = tmp_path / "context"
    context.mkdir()
    (context / "file").write_text("two")
    (context / "Dockerfile").write_text(f"FROM oci:{base}\nENV A=1\nWORKDIR /srv\nCOPY file new\nUSER 7\n")
    try:
        made = await library.build(context, "task:1")
    except BuildFailed as error:
        if "user namespace" in str(error) or "newuidmap" in str(error):
            pytest.skip(f"buildah does not work here: {error}")
        raise
    assert made.names == ("localhost/task:1",) and made.config.user == "7" and made.config.env["A"] == "1"
    assert {"etc/os", "srv/new"} <= set(store.outside(store.get(made.snapshot)))
    assert made.config.workdir == "/srv" and store.get(made.snapshot).cwd == "/srv"


async def test_a_layout_with_a_pipe_in_it_does_not_block(library: Any, tmp_path: Path) -> None:
    for place in ("index.json", "blobs/sha256/" + "a" * 64):
        layout = write_layout(tmp_path / place.replace("/", "-"), built({"a": "1"}))
        for blob in (layout / "blobs/sha256").iterdir() if "blobs" in place else [layout / place]:
            blob.unlink()
            os.mkfifo(blob)
        with pytest.raises(DamagedImage, match="not a regular file"):
            await asyncio.wait_for(library.pull(f"oci:{layout}"), 20)


def tar_of(path: Path, members: Mapping[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("tags", [5, "x", {"a": 1}, True])
async def test_tags_that_are_no_list(library: Any, tmp_path: Path, tags: object) -> None:
    listed = json.dumps([{"RepoTags": tags, "Config": "c", "Layers": []}] * 2).encode()
    with pytest.raises(ImageNotFound, match="no names"):
        await library.pull(f"docker-archive:{tar_of(tmp_path / 'a.tar', {'manifest.json': listed})}")


async def test_names_in_an_archive_are_bounded(library: Any, tmp_path: Path) -> None:
    """They may go down and up again very often, which took hours."""
    deep = "a/" * 100_000 + "../" * 100_000
    path = tar_of(tmp_path / "a.tar", {"manifest.json": b"[]", **{f"{at}/{deep}": b"" for at in range(40)}})
    with pytest.raises(TooLarge, match="characters"):
        await library.pull(f"docker-archive:{path}")


def test_a_large_compressed_tar_is_not_unpacked_to_see_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_images, "_MOST_READ", 1 << 20)
    bomb = tar_of(tmp_path / "bomb.tar.bz2", {"a": bytes(4 << 20), "manifest.json": b"[]"}, "w:bz2")
    assert not local_images.is_archive(bomb)  # its second member would say so
    blob = f"blobs/sha256/{'0' * 64}"
    assert local_images.is_archive(tar_of(tmp_path / "saved.tar.gz", {blob: bytes(4 << 20)}, "w:gz"))
