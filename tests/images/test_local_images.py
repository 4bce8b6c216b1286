"""Images of engines, whose command line is replaced, and of Dockerfiles, by a real buildah where it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ramify.images.errors import BuildFailed, EngineUnavailable, ImageNotFound
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
