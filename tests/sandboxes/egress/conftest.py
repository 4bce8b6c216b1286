"""A broker over this machine's own loopback, and servers to reach through it: no world, so these tests run
anywhere."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from ramify.sandboxes.egress.broker import EgressBroker, Slots
from ramify.sandboxes.egress.connection_log import Outcome
from ramify.sandboxes.egress.settings import PORT, Egress

PATIENCE = 20.0


class LocalPorts:
    """Stands for the agent: opens listening sockets, at free ports, on this machine."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # by the port asked for: the port that listens

    def ask(self, port: int) -> asyncio.Future[socket.socket]:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.open[port] = listener.getsockname()[1]
        answer: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        answer.set_result(listener)
        return answer

    def close(self) -> None:
        self.open.clear()


@dataclass
class Brokered:
    """A broker that is running. `port`: where it listens as a proxy."""

    broker: EgressBroker
    ports: LocalPorts

    @property
    def port(self) -> int:
        return self.ports.open[PORT]

    async def connect(self, port: int = PORT) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.ports.open[port])

    async def settled(self) -> None:
        """Wait until no connection goes on."""
        while any(one.outcome is Outcome.OPEN for one in self.broker.connections()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def ask(self, data: bytes, port: int = PORT) -> bytes:
        """Everything that comes back for these bytes, until the broker ends the connection."""
        reader, writer = await self.connect(port)
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()


class Start(Protocol):
    async def __call__(self, egress: Egress, most: int = 250) -> Brokered:
        """A broker that runs until the test's end. most: connections at once."""
        ...


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(egress: Egress, most: int = 250) -> Brokered:
            broker, ports = EgressBroker(egress, Slots(4 * most), time.time), LocalPorts()
            broker.open_ports(ports)
            stack.push_async_callback(broker.hang_up)
            await asyncio.sleep(0)
            return Brokered(broker, ports)

        yield start


@dataclass
class Server:
    """An HTTP server that answers with the request that it got, or as `answer` says."""

    answer: Callable[[bytes], bytes] | None = None
    heads: list[bytes] = field(default_factory=list)
    open: int = 0
    most: int = 0
    port: int = 0
    hold: asyncio.Event | None = None  # keeps connections open until it is set

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                if self.hold is not None:
                    await self.hold.wait()
                writer.write(self.answer(head) if self.answer is not None else ok(head))
                await writer.drain()
        finally:
            self.open -= 1
            writer.close()


def ok(body: bytes, *headers: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join([b"HTTP/1.1 200 OK", length, *headers]) + b"\r\n\r\n" + body


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with serving(made):
        yield made


@pytest.fixture
async def tls_server(authority: Authority) -> AsyncIterator[Server]:
    made = Server()
    async with serving(made, authority.server):
        yield made


class serving:
    def __init__(self, server: Server, tls: ssl.SSLContext | None = None) -> None:
        self.server, self.tls = server, tls

    async def __aenter__(self) -> Server:
        self.listening = await asyncio.start_server(self.server.serve, "127.0.0.1", 0, ssl=self.tls)
        self.server.port = self.listening.sockets[0].getsockname()[1]
        return self.server

    async def __aexit__(self, *error: object) -> None:
        if self.server.hold is not None:
            self.server.hold.set()
        self.listening.close()


@dataclass(frozen=True)
class Authority:
    """A certificate authority for these tests, and a certificate of ok.test and registry.test that it signed."""

    file: Path
    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: Path
    key: Path


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


def make_authority(folder: Path) -> Authority:
    """By the `openssl` program, which every machine with git and curl has."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test authority",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    openssl("req", *curve, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=test")
    lines = ("subjectAltName=DNS:ok.test,DNS:registry.test,DNS:localhost", "basicConstraints=CA:FALSE",
             "subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid")  # fmt: skip
    (folder / "names").write_text("\n".join(lines))
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "30", "-extfile", "names", "-out", "certificate.pem")  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    client = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    return Authority(folder / "ca.pem", server, client, folder / "certificate.pem", folder / "key.pem")
