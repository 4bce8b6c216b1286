"""Egress of real worlds: programs inside reach what the allow-list names, through the broker, and nothing else."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramify.sandboxes.egress.connection_log import ConnectionFiles, Outcome
from ramify.sandboxes.egress.errors import BadEntry, PortTaken
from ramify.sandboxes.egress.hosts import FixedResolver
from ramify.sandboxes.egress.settings import PORT, Egress, Header
from ramify.sandboxes.errors import Unsupported, WorldStartFailed
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.errors import WorldError
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Kind
from ramify.worlds.world import World
from tests.machine import why_no_namespaces
from tests.sandboxes.egress.conftest import Authority, Server, make_authority, ok, serving

pytestmark = pytest.mark.linux_ns

SECRET = "sk-0123456789abcdef"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def sandbox() -> str:
    if why := why_no_namespaces():
        pytest.skip(why)
    return "namespaces"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(Server()) as made:
        yield made


@pytest.fixture
async def tls_server(authority: Authority) -> AsyncIterator[Server]:
    async with serving(Server(), authority.server) as made:
        yield made


def allowed(*servers: Server, **options: object) -> Egress:
    """ok.test, at servers of this machine."""
    allow = [entry for server in servers for entry in (f"ok.test:{server.port}", f"127.0.0.1:{server.port}")]
    return Egress(allow, resolver=FixedResolver({"ok.test": "127.0.0.1"}), **options)  # type: ignore[arg-type]


async def outcomes(world: World) -> list[str]:
    """What became of the world's connections, once none goes on."""
    while any(one.outcome is Outcome.OPEN for one in await world.connections()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return [one.outcome.value for one in await world.connections()]


async def test_programs_find_the_broker(
    home: WorldHome, server: Server, tls_server: Server, authority: Authority
) -> None:
    async with World.create(egress=allowed(server, tls_server), home=home) as world:
        await world.write("ca.pem", authority.file.read_bytes())
        plain, safe = f"http://ok.test:{server.port}/", f"https://ok.test:{tls_server.port}/"
        urllib = "import urllib.request as r, sys; print(r.urlopen(sys.argv[1]).status)"
        for url in (plain, safe):
            env = {"SSL_CERT_FILE": f"{world.mount_at}/ca.pem", "CURL_CA_BUNDLE": f"{world.mount_at}/ca.pem"}
            assert (await world.exec(["curl", "-sSf", url], env=env, timeout=30)).ok
            assert (await world.exec([sys.executable, "-c", urllib, url], env=env, timeout=30)).stdout == "200\n"
        refused = await world.exec(["curl", "-sS", "https://no.test/"], timeout=30)
        assert "403" in refused.stderr
        local = await world.exec(["curl", "-sSf", f"http://127.0.0.1:{server.port}/"], timeout=30)
        assert local.ok
        assert await outcomes(world)
        found = [(one.protocol, one.host, one.outcome.value) for one in await world.connections()]
        assert found.count(("http", "ok.test", "done")) == found.count(("connect", "ok.test", "done")) == 2
        assert ("connect", "no.test", "refused") in found
        assert found[-1][:2] == ("forward", "127.0.0.1")


async def test_a_world_over_an_image(home: WorldHome, server: Server, tmp_path: Path) -> None:
    root = tmp_path / "image"
    make_root(root)
    server.answer = lambda head: ok(b"hello\n", b"Connection: close")
    ask = f"exec 3<>/dev/tcp/127.0.0.1/{PORT}; printf 'GET http://ok.test:{server.port}/ HTTP/1.0\\r\\n\\r\\n' >&3; "
    async with World.create(image=root, egress=allowed(server), home=home) as world:
        told = await world.exec(ask + 'while read -r line <&3; do echo "$line"; done', timeout=30)
        assert told.stdout.endswith("hello\n"), told.stderr


def make_root(root: Path) -> None:
    """A root file system with bash alone."""
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    bash = os.path.realpath(shutil.which("bash") or "")
    shutil.copy(bash, root / "usr" / "bin" / "bash")
    told = subprocess.run(["ldd", bash], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+) \(0x", told):
        place = root / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(library), place)


async def test_there_is_no_other_way_out(home: WorldHome, server: Server) -> None:
    """Proxies of the world's own choice, addresses, other families and raw packets: there is no route."""
    await server_address_is_reached_outside(server)
    tries = f"""
import socket, sys
def reach(family, kind, place):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(5)
            s.connect(place)
            s.send(b"x")
            return "reached"
    except OSError as error:
        return "no"
for family, kind, place in (
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {server.port})),
    (socket.AF_INET, socket.SOCK_STREAM, ("1.1.1.1", 443)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("1.1.1.1", 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("2606:4700:4700::1111", 443)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("::1", {server.port})),
    (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
):
    print(reach(family, kind, place))
"""
    async with World.create(egress=[f"ok.test:{server.port}"], home=home) as world:
        assert (await world.exec([sys.executable, "-c", tries], timeout=60)).stdout.split() == ["no"] * 6
        routes = (await world.exec("cat /proc/net/route /proc/net/ipv6_route")).stdout
        assert not [line for line in routes.splitlines()[1:] if line.split()[-1] != "lo"]
        own = f"curl -sS -m 5 -x http://127.0.0.1:{server.port} http://ok.test/"
        assert (await world.exec(own)).exit_code == 7
        assert server.heads == []


async def server_address_is_reached_outside(server: Server) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()


async def test_secret_is_nowhere_but_at_the_host(
    home: WorldHome, tls_server: Server, authority: Authority, tmp_path: Path
) -> None:
    tls_server.answer = lambda head: ok(b"hello")
    key = {f"ok.test:{tls_server.port}": Header("authorization", f"Bearer {SECRET}")}
    egress = allowed(tls_server, credentials=key, tls=authority.client)
    async with World.create(egress=egress, name="agent", home=home) as world:
        told = await world.exec(["curl", "-sSf", f"http://ok.test:{tls_server.port}/v1"], timeout=30)
        assert told.stdout == "hello"
        base = f"http://127.0.0.1:{PORT}/-/ok.test:{tls_server.port}/v1"
        assert (await world.exec(["curl", "-sSf", base], timeout=30)).stdout == "hello"
        assert all(f"authorization: Bearer {SECRET}".encode() in head for head in tls_server.heads)
        assert len(tls_server.heads) == 2
        inside = await world.exec("env; grep -rsa sk-0123456 /proc/*/environ /proc/*/cmdline /tmp /run || true")
        assert SECRET not in inside.stdout.replace("grep -rsa sk-0123456", "")
        (fork,) = await world.fork()
        assert (await fork.exec(["curl", "-sSf", base], timeout=30)).stdout == "hello"
        await fork.close()
        assert SECRET not in repr(await world.connections())
    found = [
        path for path in (tmp_path / "home").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert found == []


async def test_named_world_keeps_its_policy_and_not_its_credentials(
    home: WorldHome, tls_server: Server, authority: Authority
) -> None:
    place = f"ok.test:{tls_server.port}"
    key = {place: Header("authorization", SECRET)}
    egress = allowed(tls_server, credentials=key, tls=authority.client)
    async with World.create(egress=egress, name="agent", home=home):
        pass
    ask = ["curl", "-sS", f"http://{place}/"]
    async with World.open("agent", home=home) as world:
        told = (await world.exec(ask, timeout=30)).stdout
        assert f"the credential for https://{place} was not given" in told
        assert tls_server.heads == []
        assert home.references.get(Kind.WORLD, "agent").egress == tuple(egress.allow)
    async with World.open("agent", egress=egress, home=home) as world:
        assert (await world.exec(ask, timeout=30)).stdout.startswith("GET / HTTP/1.1")
        assert await outcomes(world) == ["refused", "done"]
    assert home.copy("agent", "second").egress == tuple(egress.allow)
    files = ConnectionFiles(home.references.connections("agent"))
    assert len(files.read()) == 2
    home.references.delete(Kind.WORLD, "agent")
    assert files.read() == []


async def test_change_while_a_command_runs(home: WorldHome, server: Server) -> None:
    server.hold = asyncio.Event()
    async with World.create(egress=[], name="agent", home=home) as world:
        url = f"http://ok.test:{server.port}/"
        assert "no entry of the allow-list names" in (await world.exec(["curl", "-sS", url], timeout=30)).stdout
        await world.set_egress(allowed(server))
        waiting = asyncio.ensure_future(world.exec(f"curl -sS {url}; curl -sS {url}", timeout=60))
        while not server.heads:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await world.set_egress(["other.test"])
        told = await waiting
        assert "curl: (56)" in told.stderr
        assert "no entry of the allow-list names" in told.stdout
        assert await outcomes(world) == ["refused", "cut", "refused"]
        assert home.references.get(Kind.WORLD, "agent").egress == ("other.test",)
    with pytest.raises(BadEntry, match="https://x"):
        World.create(egress=["https://x"], home=home)


async def test_forks_and_restored_worlds_have_the_changed_policy(home: WorldHome, server: Server) -> None:
    ask = ["curl", "-sSf", f"http://ok.test:{server.port}/"]
    async with World.create(egress=[], home=home) as world:
        before = await world.snapshot()
        await world.set_egress(allowed(server))
        for fork in await world.fork(2):
            assert (await fork.exec(ask, timeout=30)).ok
            assert await outcomes(fork) == ["done"]
            await fork.set_egress([])  # its own
            assert not (await fork.exec(ask, timeout=30)).ok
            assert await outcomes(fork) == ["done", "refused"]
            await fork.close()
        await world.write("changed", b"")
        await world.restore(before)
        assert (await world.exec(ask, timeout=30)).ok
        assert await outcomes(world) == ["done"]


async def test_a_python_session_goes_on_in_a_fork(home: WorldHome, server: Server) -> None:
    async with World.create(egress=allowed(server), home=home) as world:
        session = await world.python()
        await session.run(
            f"import urllib.request as u; ask = lambda: u.urlopen('http://ok.test:{server.port}/').status"
        )
        for each in (world, *(await world.fork())):
            result = await (await each.python()).run("ask()", timeout=30)
            assert result.value == "200", result.error
            assert [(one.protocol, one.host) for one in await each.connections()] == [("http", "ok.test")]
            if each is not world:
                await each.close()


def test_without_an_event_loop(tmp_path: Path, sandbox: str) -> None:
    with SyncWorld.create(egress=[], home=tmp_path / "home", sandbox=sandbox) as world:
        world.set_egress(["ok.test"])
        told = world.exec(["curl", "-sS", "http://no.test/"], timeout=30).stdout
        assert "no entry of the allow-list names no.test:80" in told
        assert [one.host for one in world.connections()] == ["no.test"]


async def test_port_of_the_host_that_a_command_uses_already(home: WorldHome, server: Server) -> None:
    async with World.create(egress=[], home=home) as world:
        listen = f"import socket; s = socket.create_server(('127.0.0.1', {server.port})); print('on'); s.accept()"
        await world.run(
            f'{sys.executable} -uc "{listen}" > out & until grep -q on out; do sleep 0.05; done', timeout=30
        )
        with pytest.raises(PortTaken, match=f"the port {server.port} inside the world"):
            await world.set_egress(allowed(server))


async def test_where_it_is_not_kept_it_is_refused(tmp_path: Path) -> None:
    async with WorldHome(tmp_path / "home", "copy") as home:
        with pytest.raises(Unsupported, match="use namespaces"):
            await World.create(egress=["pypi.org"], home=home)
        async with World.create(home=home) as world:
            with pytest.raises(WorldError, match=r"egress=\[\]"):
                await world.set_egress(["pypi.org"])
            assert await world.connections() == []
        await (await World.create(home=home, name="one")).close()
        with pytest.raises(Unsupported):
            await World.open("one", egress=["pypi.org"], home=home)
        async with World.open("one", home=home) as world:  # the list was not recorded
            assert (await world.exec("true")).ok


async def test_the_hosts_network_and_egress_exclude_each_other(home: WorldHome) -> None:
    with pytest.raises(WorldStartFailed, match="choose one"):
        await World.create(egress=["pypi.org"], network=True, home=home)
    await (await World.create(network=True, home=home, name="one")).close()
    with pytest.raises(WorldError, match="no list can limit"):
        await World.open("one", egress=["pypi.org"], home=home)
    async with World.open("one", home=home) as world:
        assert (await world.exec("true")).ok


async def test_closed_is_the_default(home: WorldHome, server: Server) -> None:
    async with World.create(home=home) as world:
        assert "proxy" not in (await world.exec("env")).stdout.lower()
        for port in (PORT, server.port):
            assert (await world.exec(["curl", "-sS", f"http://127.0.0.1:{port}/"], timeout=30)).exit_code == 7
        assert await world.connections() == []


async def test_ten_thousand_connections_from_inside(home: WorldHome, server: Server) -> None:
    """They wait in the world. This process stays with few files, and other worlds are served."""
    flood = f"""
import socket, selectors
held = []
for _ in range(10_000):
    s = socket.socket(); s.setblocking(False)
    s.connect_ex(("127.0.0.1", {PORT}))
    held.append(s)
print(len(held), flush=True)
import time; time.sleep(300)
"""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    async with World.create(egress=allowed(server), home=home) as world:
        other = (await world.fork())[0]
        await world.write("flood.py", flood)
        await world.run(
            f"{sys.executable} flood.py > out 2>&1 & until grep -q . out; do sleep 0.1; done; cat out", timeout=60
        )
        assert (await world.read("out")) == b"10000\n"
        ask = ["curl", "-sSf", f"http://ok.test:{server.port}/"]
        assert (await other.exec(ask, timeout=30)).ok
        assert len(os.listdir("/proc/self/fd")) - before < 400  # noqa: PTH208
        await other.close()
