"""Images from layouts and archives: stored once, verified, bounded, and nothing half made."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.view import find_in_stack
from ramify.images.documents import Platform
from ramify.images.errors import (
    CompressionUnsupported,
    DamagedImage,
    DigestMismatch,
    ImageNotFound,
    ImagesError,
    TooLarge,
    WrongPlatform,
)
from ramify.images.sources import ImageLimits
from tests.images.image_builder import BuiltImage, built, layer_tar, sha, write_docker_save, write_layout

OTHER = Platform("linux", "vax")
BASE = {"bin": None, "bin/tool": "tool", "etc": None, "etc/os": "one"}
SETTINGS = {
    "Env": ["A=1", "B=x=y"], "WorkingDir": "/app", "User": "1000:1000", "Entrypoint": ["/bin/tool"], "Cmd": ["-x"],
    "ExposedPorts": {"80/tcp": {}},
}  # fmt: skip


def texts(store: Any, image: Any) -> dict[str, str]:
    """The files of an image, read from its layers as overlayfs stacks them."""
    state = store.get(image.snapshot)
    dirs = store.outside_dirs(state)
    found = {path: find_in_stack(dirs, path) for path in store.outside(state)}
    return {path: at.read_text() for path, at in found.items() if at is not None and at.is_file()}


def nothing_made(store: Any, library: Any) -> bool:
    return store.present() == [] and library.catalogue.all() == [] and not list((store.root / "tmp").iterdir())


async def test_a_layout_becomes_a_snapshot_over_its_layers(library: Any, store: Any, tmp_path: Path) -> None:
    image = built(BASE, {"etc": None, "etc/.wh.os": "", "etc/new": "two"}, settings=SETTINGS)
    made = await library.pull(str(write_layout(tmp_path / "layout", image)))
    assert texts(store, made) == {"bin/tool": "tool", "etc/new": "two"}
    assert made.id == sha(image.config) and store.get(made.snapshot).env == {"A": "1", "B": "x=y"}
    config = library.catalogue.get(made.id[7:19]).config
    assert (config.workdir, config.user, config.cmd, config.exposed) == ("/app", "1000:1000", ("-x",), ("80/tcp",))
    assert library.catalogue.snapshots() == {made.snapshot} and store.fsck().status == 0


@pytest.mark.parametrize("mode", ["w", "w:gz"])
async def test_docker_save_and_a_layout_give_the_same_image(
    library: Any, store: Any, tmp_path: Path, mode: str
) -> None:
    image = built(BASE, {"etc/more": "3"})
    other = built(BASE, {"etc/less": "4"})
    path = write_docker_save(tmp_path / "saved.tar", image, other, tags=("one:1", "two:2"), mode=mode)
    saved = await library.pull(f"docker-archive:{path}:1")
    second = await library.pull(f"docker-archive:{path}:2")
    layout = await library.pull(f"oci:{write_layout(tmp_path / 'layout', image)}")
    assert saved.snapshot == layout.snapshot and saved.layers[0].layer == second.layers[0].layer
    assert len(list((store.root / "layers").iterdir())) == 4  # three of images and the empty workspace
    with pytest.raises(ImageNotFound, match="one:1, two:2"):
        await library.pull(str(path))


async def test_a_layout_in_a_tar_is_read_where_it_lies(library: Any, store: Any, tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "layout", built(BASE))
    with tarfile.open(tmp_path / "layout.tar", "w") as tar:
        tar.add(folder, ".")
    shutil.rmtree(folder)
    assert texts(store, await library.pull(str(tmp_path / "layout.tar"))) == {"bin/tool": "tool", "etc/os": "one"}


async def test_a_layer_that_is_here_is_not_read_again(library: Any, tmp_path: Path) -> None:
    first = write_layout(tmp_path / "first", built(BASE, {"a": "1"}))
    one = await library.pull(str(first))
    for blob in (first / "blobs/sha256").iterdir():
        if blob.read_bytes()[:2] == b"\x1f\x8b":
            blob.unlink()
    assert (await library.pull(str(first))).snapshot == one.snapshot


async def test_the_platform_is_chosen_from_an_index(
    library: Any, new_library: Any, store: Any, tmp_path: Path
) -> None:
    here, there = built({"a": "here"}), built({"a": "there"}, platform=OTHER)
    folder = write_layout(tmp_path / "layout", there, here)
    assert texts(store, await library.pull(str(folder))) == {"a": "here"}
    only = write_layout(tmp_path / "only", there)
    with pytest.raises(WrongPlatform, match=r"linux/vax.*this machine is linux/"):
        await library.pull(str(only))
    vax = await new_library(platform=OTHER).pull(str(only))
    assert texts(store, vax) == {"a": "there"}


async def test_names_of_a_layout_choose(library: Any, store: Any, tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "layout", built({"a": "1"}), built({"a": "2"}), names=("one", "two"))
    assert texts(store, await library.pull(f"oci:{folder}:two")) == {"a": "2"}
    with pytest.raises(ImageNotFound, match="one, two"):
        await library.pull(f"oci:{folder}:three")
    with pytest.raises(ImageNotFound, match="several images"):
        await library.pull(f"oci:{folder}")


async def test_a_tag_that_moved_stands_for_the_new_image(library: Any, tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "layout", built({"a": "1"}))
    old = await library.pull(str(folder))
    shutil.rmtree(folder)
    new = await library.pull(str(write_layout(folder, built({"a": "2"}))))
    assert library.catalogue.get(new.names[0]).id == new.id != old.id
    assert library.catalogue.get(old.id).names == ()
    library.catalogue.remove(new.names[0])
    assert [one.id for one in library.catalogue.all()] == [old.id]
    with pytest.raises(ImageNotFound, match="ramify image pull"):
        library.catalogue.get(new.names[0])


def zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard (ramify[zstd])")
    compressed: bytes = zstandard.compress(data)
    return compressed


async def test_zstd_layers(library: Any, store: Any, tmp_path: Path, monkeypatch: Any) -> None:
    folder = write_layout(tmp_path / "layout", built(BASE, compress=zstd))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "zstandard", None)
        without.setitem(sys.modules, "compression", None)
        with pytest.raises(CompressionUnsupported, match=r"ramify\[zstd\]"):
            await library.pull(str(folder))
        assert nothing_made(store, library)
    assert texts(store, await library.pull(str(folder))) == {"bin/tool": "tool", "etc/os": "one"}


def lying_config(image: BuiltImage) -> BuiltImage:
    image.config = image.config.replace(sha(image.tars[0]).encode(), sha(b"other").encode())
    image.manifest = image.manifest.replace(sha(BuiltImage(image.tars).config).encode(), sha(image.config).encode())
    return image


async def test_a_layer_that_is_not_what_was_promised_is_refused(library: Any, store: Any, tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "diff", lying_config(built(BASE)))
    with pytest.raises(DigestMismatch, match="its tar has the digest"):
        await library.pull(str(folder))
    image = built(BASE)
    folder = write_layout(tmp_path / "blob", image)
    blob = folder / "blobs/sha256" / sha(image.blobs[0])[7:]
    blob.write_bytes(gzip.compress(image.tars[0], mtime=1))
    with pytest.raises(DigestMismatch, match="its blob has the digest"):
        await library.pull(str(folder))
    (folder / "blobs/sha256" / sha(image.config)[7:]).write_bytes(image.config + b" ")
    with pytest.raises(DigestMismatch):
        await library.pull(str(folder))
    assert nothing_made(store, library) and list((store.root / "layers").iterdir()) == []


@pytest.mark.parametrize("cut", [20, -20])
async def test_a_layer_that_was_cut_is_refused(library: Any, store: Any, tmp_path: Path, cut: int) -> None:
    image = built({"a": b"x" * 4000})
    folder = write_layout(tmp_path / "layout", image)
    blob = folder / "blobs/sha256" / sha(image.blobs[0])[7:]
    blob.write_bytes(image.blobs[0][:cut])
    with pytest.raises(DamagedImage):
        await library.pull(str(folder))
    assert nothing_made(store, library)


async def test_a_zip_bomb_is_refused_while_it_unpacks(new_library: Any, store: Any, tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "layout", built({"zeros": b"\0" * (1 << 22)}))
    library = new_library(limits=ImageLimits(layer_bytes=1 << 20))
    with pytest.raises(TooLarge, match="zip bomb"):
        await library.pull(str(folder))
    many = write_layout(tmp_path / "many", built(*[{str(n): b"\0" * 600_000} for n in range(2)]))
    with pytest.raises(TooLarge):
        await new_library(limits=ImageLimits(image_bytes=1 << 20)).pull(str(many))
    with pytest.raises(TooLarge, match="layers"):
        await new_library(limits=ImageLimits(layers=1)).pull(str(many))
    assert nothing_made(store, library)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"layers": None}, "no list 'layers'"),
        ({"layers": [{"digest": "md5:1", "size": 1}]}, "not a sha256 digest"),
        ({"layers": [{"digest": sha(b""), "size": -1}]}, "no size"),
        ({"layers": []}, "0 layers"),
        ({"schemaVersion": 1}, "schema 1"),
        ({"config": 3}, "no configuration"),
    ],
)
async def test_a_malformed_manifest_is_refused(
    library: Any, tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    image = built(BASE)
    image.manifest = json.dumps(json.loads(image.manifest) | change).encode()
    with pytest.raises(DamagedImage, match=why):
        await library.pull(str(write_layout(tmp_path / "layout", image)))


@pytest.mark.parametrize(
    "settings", [{"WorkingDir": "/a\0b"}, {"User": "a\0"}, {"Env": ["A=\0"]}, {"Env": ["A=\ud800"]}]
)
async def test_what_no_process_can_be_given_in_a_configuration_is_refused(
    library: Any, store: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(DamagedImage, match="NUL byte"):
        await library.pull(str(write_layout(tmp_path / "layout", built(BASE, settings=settings))))
    assert nothing_made(store, library)


@pytest.mark.parametrize(
    ("workdir", "there"),
    [
        ("/srv/app", True), ("/run/app", True), ("/link/..", True), ("/../../srv", True), ("/loop", False),
        ("/out", False), ("/up/ramify-outside", False), ("/file", False), ("/gone", False),
    ],
)  # fmt: skip
async def test_a_working_directory_is_looked_for_in_the_image_alone(
    library: Any, store: Any, tmp_path: Path, workdir: str, there: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    links = {"run": "/srv", "link": "srv/app", "loop": "loop", "out": str(outside), "up": "../../../../../../../tmp"}
    files: dict[str, Any] = {"srv": None, "srv/app": None, "file": "", "gone": None}
    for name, target in links.items():
        files[name] = tarfile.TarInfo(name)
        files[name].type, files[name].linkname = tarfile.SYMTYPE, target
    image = built(files, {".wh.gone": ""}, settings={"WorkingDir": workdir})
    made = await library.pull(str(write_layout(tmp_path / "layout", image)))
    assert store.get(made.snapshot).cwd == (f"/{workdir.strip('/')}" if there else "/")


@pytest.mark.parametrize("time", ["nan", "inf", "-1e30", "1e300", "yesterday"])
async def test_a_time_that_no_file_can_have_is_left_out(library: Any, store: Any, tmp_path: Path, time: str) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("file")
        info.pax_headers = {"mtime": time}
        tar.addfile(info)
    image = BuiltImage([data.getvalue()])
    made = await library.pull(str(write_layout(tmp_path / "layout", image)))
    at = find_in_stack(store.outside_dirs(store.get(made.snapshot)), "file")
    assert at is not None and at.stat().st_mtime_ns == 0


async def test_paths_and_archives_that_are_none(library: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no tar")
    (tmp_path / "root.tar").write_bytes(layer_tar({"etc/passwd": "x"}))
    for path in ("empty", "text", "root.tar", "missing"):
        for kind in ("oci", "docker-archive"):
            with pytest.raises(ImagesError):
                await library.pull(f"{kind}:{tmp_path / path}")


async def test_hostile_layers_leave_nothing(library: Any, store: Any, tmp_path: Path) -> None:
    with pytest.raises(DamagedImage, match="leads out"):
        await library.pull(str(write_layout(tmp_path / "layout", built(BASE, {"../../evil": "x"}))))
    assert nothing_made(store, library) and not (tmp_path / "evil").exists()
