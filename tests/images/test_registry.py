"""Pulls from registries: good ones, hostile ones, and Debian's."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramify.fork_engine.errors import StoreUnusable
from ramify.fork_engine.gc_pins import Pins
from ramify.images import registry as registries
from ramify.images import registry_client
from ramify.images.catalogue import Catalogue
from ramify.images.documents import Platform
from ramify.images.errors import (
    BadReference,
    DigestMismatch,
    ImageNotFound,
    LoginRefused,
    RegistryError,
    RegistryStalled,
    RegistryUnreachable,
    WrongPlatform,
)
from ramify.images.library import ImageLibrary
from ramify.images.registry import Download, Pulling
from ramify.images.registry_client import leads_to_this_machine, login_for, on_this_machine
from tests.images.image_builder import BuiltImage, built, sha
from tests.images.registry_server import Handler, Registry, serving, token_server
from tests.ports import free_port

NOISE = random.Random(1).randbytes(300_000)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as made:
        yield made


@pytest.fixture
def image() -> BuiltImage:
    return built({"a": "1"}, {"noise": NOISE}, {"b": "2"}, settings={"Env": ["A=1"]})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without logins."""
    for name in ("DOCKER_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def quick(**options: Any) -> Pulling:
    async def at_once(seconds: float) -> None:
        await asyncio.sleep(0)

    return Pulling(sleep=at_once, **options)


def log_in(home: Path, address: str) -> str:
    auth = base64.b64encode(b"me:hunter2").decode()
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))
    return f"Basic {auth}"


async def test_an_image_is_pulled_verified_and_not_twice(
    library: Any, store: Any, registry: Registry, image: BuiltImage, tmp_path: Path
) -> None:
    seen: dict[str, int] = {}
    name = registry.add(image)
    made = await library.pull(name, progress=lambda layer, here: seen.update({layer.digest: here}))
    assert seen == {sha(blob): len(blob) for blob in image.blobs} and made.names == (name,)
    assert sorted(store.outside(store.get(made.snapshot))) == ["a", "b", "noise"]
    assert not list((tmp_path / "home/images/downloads").iterdir())
    fetched = len(registry.paths("/blobs/"))
    more = built({"a": "1"}, {"noise": NOISE}, {"c": "3"})
    await library.pull(registry.add(more, tag="2"))
    assert len(registry.paths("/blobs/")) == fetched + 2  # the configuration and the new layer
    await library.pull(f"{registry.address}/a@{sha(image.manifest)}")


async def test_a_download_that_another_pull_removes_is_fetched_again(
    library: Any, registry: Registry, image: BuiltImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other pull of the layer had finished, and removed the file before it was verified here."""
    digest, removed = Download.digest, list[Path]()

    def late(download: Download) -> str:
        if not removed:
            removed.append(download.path)
            download.path.unlink()
        return digest(download)

    monkeypatch.setattr(Download, "digest", late)
    assert (await library.pull(registry.add(image))).config.env == {"A": "1"}


async def test_files_that_another_process_removes_while_a_folder_is_read(
    library: Any, registry: Registry, image: BuiltImage
) -> None:
    """A link to nowhere is as a file that is in the list of its folder and is gone when it is opened."""
    nowhere, folder = library.catalogue.folder / "nowhere", library.catalogue.folder
    await library.pull(registry.add(built({"other": "1"}), tag="other"))
    for gone in (f"downloads/{'a' * 64}", f"names/{'a' * 64}.json", f"images/{'a' * 64}.json"):
        (folder / gone).symlink_to(nowhere)
    made = await library.pull(registry.add(image))
    assert len(library.catalogue.all()) == 2 and made in library.catalogue.all()


async def test_layers_are_fetched_at_once(library: Any, registry: Registry) -> None:
    image = built(*[{str(n): str(n)} for n in range(registries.AT_ONCE)])
    name = registry.add(image)
    together = threading.Barrier(registries.AT_ONCE, timeout=20)

    def wait(handler: Handler) -> bool:
        if any(handler.path.endswith(sha(blob)) for blob in image.blobs):
            together.wait()
        return False

    registry.before = wait
    await library.pull(name)


async def test_a_cut_download_goes_on_where_it_stopped(
    new_library: Any, registry: Registry, image: BuiltImage
) -> None:
    name, blob = registry.add(image), image.blobs[1]
    cut_at = iter([100_000, 70_000])

    def cut(handler: Handler) -> bool:
        if not handler.path.endswith(sha(blob)):
            return False
        begin = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        length = next(cut_at, None)
        if length is None:
            return False
        more = {"Content_Range": f"bytes {begin}-"} if begin else {}
        handler.answer(206 if begin else 200, blob[begin : begin + length], claim=len(blob) - begin, **more)
        return True

    registry.before = cut
    await new_library(pulling=quick()).pull(name)
    asked = [headers.get("Range") for path, headers in registry.requests if path.endswith(sha(blob))]
    assert asked == [None, "bytes=100000-", "bytes=170000-"]


def test_only_downloads_are_removed(tmp_path: Path) -> None:
    """In the home of somebody else, a link can lead to a folder of the user's."""
    for name in ("thesis.tex", "a" * 64):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    with registries.Downloads(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


async def test_a_download_goes_on_after_a_failed_pull(
    new_library: Any, registry: Registry, image: BuiltImage
) -> None:
    name, blob = registry.add(image), image.blobs[1]

    def cut(handler: Handler) -> bool:
        if handler.path.endswith(sha(blob)):
            begin = int(handler.headers.get("Range", "bytes=0-")[6:-1])
            more = {"Content_Range": f"bytes {begin}-"} if begin else {}
            handler.answer(206 if begin else 200, blob[begin : begin + 1000], claim=len(blob), **more)
            return True
        return False

    registry.before = cut
    library = new_library(pulling=quick())
    with pytest.raises(RegistryUnreachable):
        await library.pull(name)
    assert library.catalogue.all() == []
    registry.before, registry.requests = None, []
    await library.pull(name)
    assert [h.get("Range") for path, h in registry.requests if path.endswith(sha(blob))] == ["bytes=4000-"]


@pytest.mark.parametrize("what", ["layer", "config", "longer", "manifest"])
async def test_a_registry_that_lies_is_refused(
    library: Any, store: Any, registry: Registry, image: BuiltImage, what: str, tmp_path: Path
) -> None:
    name = registry.add(image)
    at = {"config": sha(image.config)}.get(what, sha(image.blobs[1]))
    lie = registry.content[f"/v2/a/blobs/{at}"]
    registry.content[f"/v2/a/blobs/{at}"] = lie + b"x" if what == "longer" else bytes(reversed(lie))
    if what == "manifest":
        name = f"{registry.address}/a@{sha(b'other')}"
        registry.content[f"/v2/a/manifests/{sha(b'other')}"] = image.manifest
    with pytest.raises(DigestMismatch):
        await library.pull(name)
    assert store.present() == [] and library.catalogue.all() == []
    registry.content[f"/v2/a/blobs/{at}"] = lie
    await library.pull(name.replace(sha(b"other"), sha(image.manifest)))


async def test_a_registry_that_stalls(new_library: Any, registry: Registry, image: BuiltImage) -> None:
    name, go_on = registry.add(image), threading.Event()

    def stall(handler: Handler) -> bool:
        if handler.path.endswith(sha(image.blobs[1])):
            handler.answer(200, image.blobs[1][:1000], claim=len(image.blobs[1]))
            handler.wfile.flush()
            go_on.wait(20)
            return True
        return False

    registry.before = stall
    try:
        with pytest.raises(RegistryStalled, match="goes on there"):
            await new_library(pulling=quick(stall_s=0.3)).pull(name)
    finally:
        go_on.set()


async def test_a_registry_that_drips_stalls_too(new_library: Any, registry: Registry, image: BuiltImage) -> None:
    now = iter(range(0, 10_000, 20))
    name = registry.add(image)
    with pytest.raises(RegistryStalled):  # by its clock, each chunk takes 20 s
        await new_library(pulling=quick(clock=lambda: float(next(now)), stall_s=10)).pull(name)


async def test_a_redirect_gets_no_login(library: Any, registry: Registry, image: BuiltImage, home: Path) -> None:
    header = log_in(home, registry.address)
    name = registry.add(image)
    with serving("127.0.0.2") as elsewhere:
        elsewhere.content = dict(registry.content)
        ask = token_server(registry, header)

        def redirect(handler: Handler) -> bool:
            if ask(handler):
                return True
            if "/blobs/" in handler.path:
                handler.answer(307, b"", Location=f"http://{elsewhere.address}{handler.path}")
                return True
            return False

        registry.before = redirect
        await library.pull(name)
        assert elsewhere.requests and all("authorization" not in map(str.lower, h) for _, h in elsewhere.requests)


@pytest.mark.parametrize("drop", [b"X-More: 1\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"])
async def test_a_registry_whose_headers_never_end_stalls(
    new_library: Any, registry: Registry, image: BuiltImage, monkeypatch: pytest.MonkeyPatch, drop: bytes
) -> None:
    name, over = registry.add(image), threading.Event()

    def drip(handler: Handler) -> bool:
        with suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n" if drop.startswith(b"X") else b"")
            while not over.wait(0.05):
                handler.wfile.write(drop)
        return True

    registry.before = drip
    monkeypatch.setattr(registry_client, "CONNECT_S", 0.3)
    try:
        with pytest.raises(RegistryStalled):
            await new_library(pulling=quick(stall_s=0.3)).pull(name)
    finally:
        over.set()


@pytest.mark.parametrize("name", ["localhost:99999/a", "[1:2]/a", "xn--.com/a"])
async def test_a_registry_that_has_no_address(library: Any, name: str) -> None:
    with pytest.raises(BadReference, match="not the address of a registry"):
        await library.pull(name)


@pytest.mark.parametrize(
    "to",
    [
        "http://example.com/x",
        "file:///etc/passwd",
        "http://[",
        "http://localhost:99999/",
        "https://xn--.com/",
        "/v2/a/manifests/1",
    ],
)
async def test_redirects_that_are_refused(library: Any, registry: Registry, image: BuiltImage, to: str) -> None:
    name = registry.add(image)

    def redirect(handler: Handler) -> bool:
        handler.answer(302, b"", Location=to)
        return True

    registry.before = redirect
    with pytest.raises(RegistryError):
        await library.pull(name)


async def test_logins_are_sent_to_the_token_server_and_never_shown(
    library: Any, registry: Registry, image: BuiltImage, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    name = registry.add(image)
    registry.before = token_server(registry, f"Basic {base64.b64encode(b'me:hunter2').decode()}")
    with pytest.raises(LoginRefused, match="wants a login"):
        await library.pull(name)
    header = log_in(home, registry.address)
    await library.pull(name)
    registry.before = token_server(registry, "Basic other")
    with pytest.raises(LoginRefused, match="refuses the stored login") as refused:
        await library.pull(name)
    shown = caplog.text + str(refused.value) + repr(login_for(registry.address))
    assert not any(secret in shown for secret in ("hunter2", header, "secret-token"))


async def test_basic_logins(library: Any, registry: Registry, image: BuiltImage, home: Path) -> None:
    header, name = log_in(home, registry.address), registry.add(image)

    def ask(handler: Handler) -> bool:
        if handler.headers.get("Authorization") == header:
            return False
        handler.answer(401, b"", WWW_Authenticate='Basic realm="r"')
        return True

    registry.before = ask
    await library.pull(name)


async def test_a_login_is_not_sent_to_a_token_server_without_tls(
    library: Any, registry: Registry, image: BuiltImage, home: Path
) -> None:
    log_in(home, registry.address)
    name = registry.add(image)

    def ask(handler: Handler) -> bool:
        handler.answer(401, b"", WWW_Authenticate='Bearer realm="http://evil.example/token"')
        return True

    registry.before = ask
    with pytest.raises(LoginRefused, match="not reached over TLS"):
        await library.pull(name)


async def test_what_is_missing_or_for_other_machines(library: Any, registry: Registry, image: BuiltImage) -> None:
    with pytest.raises(ImageNotFound, match="Check its name"):
        await library.pull(f"{registry.address}/nothing:1")
    with pytest.raises(WrongPlatform):
        await library.pull(registry.add(built({"a": "1"}, platform=Platform("linux", "vax"))))
    with pytest.raises(RegistryUnreachable):
        await library.pull(f"127.0.0.1:{free_port()}/a:1")


def test_what_is_this_machine() -> None:
    assert all(map(on_this_machine, ("localhost", "localhost:5000", "127.0.0.1:5", "[::1]:5000", "::1", "[::1]")))
    assert not any(map(on_this_machine, ("localhost.evil.com", "10.0.0.1:80", "127.0.0.1.nip.io:80", "example.com")))


@pytest.fixture
def debian(tmp_path: Path) -> Iterator[str]:
    """The address of a `docker-registry`."""
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("docker-registry is not installed (apt-get install docker-registry)")
    address = f"127.0.0.1:{free_port()}"
    settings = tmp_path / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    server = subprocess.Popen([program, "serve", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            try:
                httpx.get(f"http://{address}/v2/")
                break
            except httpx.TransportError:
                threading.Event().wait(0.05)
        yield address
    finally:
        server.kill()
        server.wait()


def push(image: BuiltImage, address: str) -> None:
    with httpx.Client(base_url=f"http://{address}") as client:
        for data in (image.config, *image.blobs):
            begun = client.post("/v2/group/app/blobs/uploads/")
            to = httpx.URL(begun.headers["Location"]).copy_merge_params({"digest": sha(data)})
            assert client.put(to, content=data).status_code == 201
        kind = {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}
        assert client.put("/v2/group/app/manifests/1", content=image.manifest, headers=kind).status_code == 201


@pytest.mark.registry
async def test_debians_registry(library: Any, store: Any, debian: str, image: BuiltImage) -> None:
    await asyncio.to_thread(push, image, debian)
    made = await library.pull(f"{debian}/group/app:1")
    assert made.id == sha(image.config) and len(made.layers) == 3
    assert sorted(store.outside(store.get(made.snapshot))) == ["a", "b", "noise"]
    with pytest.raises(ImageNotFound):
        await library.pull(f"{debian}/group/app:2")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A folder on a disk of 100 kB, and what makes it larger."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", folder]).returncode:
        pytest.skip("cannot mount: not root")

    def grow() -> None:
        subprocess.run(["mount", "-o", "remount,size=2m", folder], check=True)

    try:
        yield folder, grow
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_full_disk_in_a_pull_and_going_on_after(
    store: Any, registry: Registry, image: BuiltImage, tmp_path: Path, small_disk: tuple[Path, Callable[[], None]]
) -> None:
    folder, grow = small_disk
    library = ImageLibrary(store, Catalogue(folder / "images"), Pins(tmp_path / "locks"))
    name = registry.add(image)
    with pytest.raises(StoreUnusable, match="space"):
        await library.pull(name)
    assert library.catalogue.all() == [] and store.present() == []
    grow()
    registry.requests = []
    await library.pull(name)
    (asked,) = [headers for path, headers in registry.requests if path.endswith(sha(image.blobs[1]))]
    assert asked["Range"].startswith("bytes=") and asked["Range"] != "bytes=0-"


def test_spellings_of_this_machine_in_a_redirect() -> None:
    spelled = (
        "localhost.",
        "a.localhost",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0.0.0.0",
        "::",
        "::ffff:127.0.0.1",
        "::1",
    )
    assert all(map(leads_to_this_machine, (*spelled, "169.254.169.254", "fe80::1%eth0")))
    assert not any(map(leads_to_this_machine, ("127.0.0.1.nip.io", "10.0.0.1", "example.com", "2606:4700::1111")))
