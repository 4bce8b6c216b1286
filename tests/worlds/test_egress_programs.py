"""Programs in a world reach their servers through the broker, unchanged: pip, git, npm, apt-get, httpx.

The servers are local. They answer as pypi.org, github.com, registry.npmjs.org and a mirror of Debian do.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import http.server
import io
import json
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify.sandboxes.contract import RunResult
from ramify.sandboxes.egress.connection_log import Outcome
from ramify.sandboxes.egress.hosts import FixedResolver, addresses_of
from ramify.sandboxes.egress.settings import Egress
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.machine import why_no_namespaces
from tests.sandboxes.egress.conftest import Authority, make_authority

pytestmark = pytest.mark.linux_ns

TIMEOUT = 120.0


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def sandbox() -> str:
    if why := why_no_namespaces():
        pytest.skip(why)
    return "namespaces"


class Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path != "/events":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            event = f"data: {number}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")


class FileServer:
    """Serves a folder at ok.test, over TLS and in plain."""

    def __init__(self, folder: Path, tls: ssl.SSLContext | None) -> None:
        handler = functools.partial(Files, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.address = f"{'https' if tls is not None else 'http'}://ok.test:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "served"
    made.mkdir()
    return made


@pytest.fixture
def safe(folder: Path, authority: Authority) -> Iterator[FileServer]:
    server = FileServer(folder, authority.server)
    yield server
    server.close()


@pytest.fixture
def plain(folder: Path) -> Iterator[FileServer]:
    server = FileServer(folder, None)
    yield server
    server.close()


class Room:
    """A world that may reach one server, with the test's certificate authority in it."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def run(self, *words: str, **env: str) -> RunResult:
        authority = f"{self.world.mount_at}/ca.pem"
        names = ("SSL_CERT_FILE", "PIP_CERT", "GIT_SSL_CAINFO", "npm_config_cafile", "CURL_CA_BUNDLE")
        none = ("PIP_CONFIG_FILE", "npm_config_userconfig")  # not what this machine uses
        own = {**dict.fromkeys(names, authority), **dict.fromkeys(none, "/dev/null")}
        return await self.world.exec(list(words), env={**own, **env}, timeout=TIMEOUT)

    async def reached(self) -> set[tuple[str, str, str]]:
        """The connections, once none goes on."""
        while any(one.outcome is Outcome.OPEN for one in await self.world.connections()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return {(one.protocol, one.host, one.outcome.value) for one in await self.world.connections()}


async def room(home: WorldHome, server: FileServer, authority: Authority, folder: Path | None = None) -> Room:
    allow = [f"ok.test:{server.port}", f"127.0.0.1:{server.port}"]
    egress = Egress(allow, resolver=FixedResolver({"ok.test": "127.0.0.1"}))
    world = await World.create(folder, egress=egress, home=home)
    await world.write("ca.pem", authority.file.read_bytes())
    return Room(world)


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


async def test_pip_installs(home: WorldHome, safe: FileServer, folder: Path, authority: Authority) -> None:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "TEXT = 'hello'\n")
        archive.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(
            "greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("greeting-1.0.dist-info/RECORD", "")
    name = "greeting-1.0-py3-none-any.whl"
    digest = hashlib.sha256(wheel.getvalue()).hexdigest()
    place = folder / "simple" / "greeting"
    place.mkdir(parents=True)
    (place / name).write_bytes(wheel.getvalue())
    (place / "index.html").write_text(f'<a href="{name}#sha256={digest}">{name}</a>')
    inside = await room(home, safe, authority)
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "--target", "got"]
    done = await inside.run(*pip, "--index-url", f"{safe.address}/simple/", "greeting")
    assert done.ok, done.stderr
    told = await inside.run(sys.executable, "-c", "import greeting; print(greeting.TEXT)", PYTHONPATH="got")
    assert told.stdout == "hello\n"
    assert await inside.reached() == {("connect", "ok.test", "done")}
    await inside.world.close()


async def test_git_clones(home: WorldHome, safe: FileServer, folder: Path, authority: Authority) -> None:
    needs("git")
    make_repository(folder)
    inside = await room(home, safe, authority)
    done = await inside.run("git", "clone", "-q", f"{safe.address}/repo.git", "copy")
    assert done.ok, done.stderr
    assert (await inside.run("git", "-C", "copy", "log", "--format=%s")).stdout == "one\n"
    assert not (await inside.run("git", "clone", "-q", "https://github.example/x.git")).ok
    assert await inside.reached() == {("connect", "ok.test", "done"), ("connect", "github.example", "refused")}
    await inside.world.close()


def make_repository(folder: Path) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"]
    work = folder / "work"
    for words in (["init", "-q", str(work)], ["-C", str(work), "commit", "-q", "--allow-empty", "-m", "one"],
                  ["clone", "-q", "--bare", str(work), str(folder / "repo.git")],
                  ["-C", str(folder / "repo.git"), "update-server-info"]):  # fmt: skip
        subprocess.run([*git, *words], check=True, capture_output=True)


async def test_npm_installs(home: WorldHome, safe: FileServer, folder: Path, authority: Authority) -> None:
    needs("npm")
    archive = io.BytesIO()
    package = json.dumps({"name": "greeting", "version": "1.0.0", "main": "index.js"}).encode()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, data in (("package/package.json", package), ("package/index.js", b"module.exports = 'hello'\n")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    (folder / "greeting.tgz").write_bytes(archive.getvalue())
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.getvalue()).digest()).decode()
    dist = {"tarball": f"{safe.address}/greeting.tgz", "integrity": integrity}
    version = {"name": "greeting", "version": "1.0.0", "dist": dist}
    (folder / "greeting").write_text(
        json.dumps({"name": "greeting", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}})
    )
    inside = await room(home, safe, authority)
    quiet = {
        "npm_config_fetch_retries": "0",
        "npm_config_audit": "false",
        "npm_config_fund": "false",
        "npm_config_update_notifier": "false",
    }
    done = await inside.run("npm", "install", "--registry", safe.address, "--cache", "cache", "greeting", **quiet)
    assert done.ok, done.stderr
    assert (await inside.run("node", "-p", "require('greeting')")).stdout == "hello\n"
    assert await inside.reached() == {("connect", "ok.test", "done")}
    await inside.world.close()


async def test_apt_get_updates(home: WorldHome, plain: FileServer, folder: Path, authority: Authority) -> None:
    needs("apt-get")
    fields = {"Package": "greeting", "Version": "1.0", "Architecture": "all", "Maintainer": "n <e@x>"}
    fields |= {"Description": "d", "Filename": "g.deb", "Size": "1", "SHA256": "0" * 64}
    (folder / "Packages").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    inside = await room(home, plain, authority)
    for name in ("etc", "lists/partial", "cache/archives/partial", "empty"):
        await inside.run("mkdir", "-p", name)
    await inside.world.write("etc/sources.list", f"deb [trusted=yes] {plain.address}/ ./\n")
    top = str(inside.world.mount_at)
    options = [f"-oDir::Etc::sourcelist={top}/etc/sources.list", f"-oDir::Etc::sourceparts={top}/empty",
               f"-oDir::State::lists={top}/lists", f"-oDir::Cache={top}/cache", "-oAPT::Sandbox::User=",
               "-oAPT::Architecture=amd64"]  # fmt: skip
    done = await inside.run("apt-get", *options, "update")
    assert done.ok, done.stderr
    assert "greeting" in (await inside.run("apt-cache", *options, "pkgnames")).stdout
    assert ("http", "ok.test", "done") in await inside.reached()
    await inside.world.close()


async def test_httpx_reads_a_stream_of_events(home: WorldHome, safe: FileServer, authority: Authority) -> None:
    inside = await room(home, safe, authority)
    program = f"""
import httpx, os, ssl
known = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
with httpx.stream("GET", "{safe.address}/events", verify=known) as response:
    print([line for line in response.iter_lines() if line])
"""
    told = await inside.run(sys.executable, "-c", program)
    assert told.stdout == "['data: 0', 'data: 1', 'data: 2']\n", told.stderr
    assert await inside.reached() == {("connect", "ok.test", "done")}
    await inside.world.close()


async def test_the_real_package_index(home: WorldHome) -> None:
    """pypi.org, through the broker's own resolver. Where its name leads to a mirror with a private address, the list
    names that address, too."""
    index = "pypi.org"
    found = await asyncio.to_thread(addresses_of, index)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(index, 443), 5)
        writer.close()
    except OSError:
        pytest.skip(f"{index} cannot be reached from this machine")
    async with World.create(egress=[index, *map(str, found or [])], home=home) as world:
        told = await world.exec(["curl", "-sS", "-o", "page", f"https://{index}/simple/six/"], timeout=60)
        if told.exit_code == 60:
            pytest.skip(f"{index} answers with a certificate that this machine does not know")
        assert told.ok, told.stderr
        assert b"six-" in await world.read("page")
        (one,) = await world.connections()
        assert (one.protocol, one.host, one.port) == ("connect", index, 443)
