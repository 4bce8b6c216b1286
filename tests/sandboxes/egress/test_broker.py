"""The broker: what it passes on, what it refuses, and how it is bounded."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from ramify.sandboxes.egress import broker as brokers
from ramify.sandboxes.egress import connections, http_proxy
from ramify.sandboxes.egress.connection_log import Outcome
from ramify.sandboxes.egress.hosts import FixedResolver
from ramify.sandboxes.egress.settings import Egress
from tests.sandboxes.egress.brokered_hosts import local, log, names, open_files
from tests.sandboxes.egress.conftest import PATIENCE, Server, Start, ok

# What passes


async def test_connect_passes_bytes_both_ways(start: Start, server: Server) -> None:
    made = await start(local(server))
    reader, writer = await made.connect()
    writer.write(f"CONNECT ok.test:{server.port} HTTP/1.1\r\nHost: other\r\n\r\n".encode())
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
    writer.write(b"GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n")
    assert (await reader.read()).endswith(b"GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n")
    writer.close()
    await made.settled()
    (one,) = made.broker.connections()
    assert (one.protocol, one.host, one.port, one.address) == ("connect", "ok.test", server.port, "127.0.0.1")
    assert (one.sent, one.received > 33) == (33, True)


async def test_half_closed_connections_go_on(start: Start) -> None:
    async def after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.read()))
        writer.close()

    listening = await asyncio.start_server(after_the_end, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    made = await start(Egress([f"127.0.0.1:{port}"]))
    reader, writer = await made.connect(port)
    writer.write(b"12345")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b"5"
    writer.close()
    listening.close()


async def test_requests_of_one_connection_are_checked_one_by_one(start: Start, server: Server) -> None:
    made = await start(local(server))
    reader, writer = await made.connect()
    for path in (b"/1", b"/2"):
        writer.write(b"GET http://ok.test:%d%s HTTP/1.1\r\nHost: x\r\n\r\n" % (server.port, path))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: keep-alive" in head
        body = await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        assert body.startswith(b"GET " + path)
    writer.write(b"GET http://no.test/ HTTP/1.1\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
    writer.close()
    assert log(made) == [("http", "ok.test", "done")] * 2 + [("http", "no.test", "refused")]


async def test_host_header_is_the_targets(start: Start, server: Server) -> None:
    made = await start(local(server))
    target = f"http://ok.test:{server.port}/x?y=1"
    told = await made.ask(
        f"GET {target} HTTP/1.1\r\nHost: internal.example\r\nX-A: 1\r\nProxy-Authorization: p\r\n"
        "Connection: close, x-a\r\n\r\n".encode()
    )
    head = told.partition(b"\r\n\r\n")[2]
    assert head == f"GET /x?y=1 HTTP/1.1\r\nHost: ok.test:{server.port}\r\nConnection: close\r\n\r\n".encode()


async def test_socks_by_name_and_by_address(start: Start, server: Server) -> None:
    made = await start(local(server))
    name = b"ok.test"
    port = server.port.to_bytes(2)
    for address in (
        b"\x03" + bytes([len(name)]) + name,
        b"\x01\x7f\0\0\x01",
        b"\x04" + b"\0" * 10 + b"\xff\xff\x7f\0\0\x01",
    ):
        told = await made.ask(b"\x05\x01\0" + b"\x05\x01\0" + address + port + b"GET / HTTP/1.1\r\n\r\n")
        assert told.startswith(b"\x05\0" + b"\x05\0\0\x01" + b"\0" * 6 + b"HTTP/1.1 200 OK")


async def test_large_bodies_pass_whole_and_chunks_stay_chunks(start: Start, server: Server) -> None:
    body = os.urandom(3 << 20)
    server.answer = lambda head: ok(body)
    made = await start(local(server))
    told = await made.ask(b"GET http://ok.test:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % server.port)
    assert told.partition(b"\r\n\r\n")[2] == body
    server.answer = lambda head: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    told = await made.ask(b"GET http://ok.test:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % server.port)
    assert told.partition(b"\r\n\r\n")[2] == b"3\r\nabc\r\n0\r\n\r\n"


async def test_events_of_a_stream_pass_one_by_one(start: Start) -> None:
    turn: asyncio.Queue[bytes] = asyncio.Queue()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while event := await turn.get():
            writer.write(event)
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(stream, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    made = await start(Egress([f"127.0.0.1:{port}"]))
    reader, writer = await made.connect()
    writer.write(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % port)
    await reader.readuntil(b"\r\n\r\n")
    for event in (b"data: 1\n\n", b"data: 2\n\n"):  # the second is not sent before the first has arrived
        turn.put_nowait(event)
        assert await asyncio.wait_for(reader.readexactly(len(event)), PATIENCE) == event
    turn.put_nowait(b"")
    assert await reader.read() == b""
    writer.close()
    listening.close()


async def test_port_of_the_host_at_the_same_address(start: Start, server: Server) -> None:
    made = await start(local(server))
    told = await made.ask(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", server.port)
    assert told.startswith(b"HTTP/1.1 200 OK")
    await made.settled()
    assert log(made) == [("forward", "127.0.0.1", "done")]


# What is refused


@pytest.mark.parametrize(
    "request_",
    [
        "CONNECT no.test:443 HTTP/1.1",
        "CONNECT ok.test:22 HTTP/1.1",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
        "CONNECT 2130706433:443 HTTP/1.1",
        "CONNECT [::1]:443 HTTP/1.1",
        "CONNECT ok.test HTTP/1.1",
        "CONNECT http://ok.test/ HTTP/1.1",
        "GET http://no.test/ HTTP/1.1",
        "GET http://169.254.169.254/latest/meta-data HTTP/1.1",
        "GET http://user@ok.test/ HTTP/1.1",
        "GET http://ok.test@no.test/ HTTP/1.1",
        "GET http://no.test#ok.test/ HTTP/1.1",
        "GET https://no.test/ HTTP/1.1",
        "GET /-/no.test/ HTTP/1.1",
        "GET /-/127.0.0.1/ HTTP/1.1",
        "GET ftp://ok.test/ HTTP/1.1",
        "GET / HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "TRACE http://ok.test/ HTTP/1.1",
        "trace http://ok.test/ HTTP/1.1",
    ],
)
async def test_refused_requests_reach_nothing(start: Start, server: Server, request_: str) -> None:
    egress = local(server)
    made = await start(egress)
    told = await made.ask(f"{request_}\r\nHost: ok.test:{server.port}\r\n\r\n".encode())
    assert told.split(b" ")[1] in (b"400", b"403", b"405")
    assert server.heads == []
    assert isinstance(egress.resolver, FixedResolver)
    assert egress.resolver.asked == []  # not even its name was looked up
    assert [one.outcome for one in made.broker.connections()] == [Outcome.REFUSED]


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (b"\x05\x01\x02", b"\x05\xff"),  # with a password
        (b"\x05\x01\0\x05\x02\0\x01\x7f\0\0\x01\0\x50", b"\x05\0\x05\x07"),  # BIND
        (b"\x05\x01\0\x05\x03\0\x01\x7f\0\0\x01\0\x50", b"\x05\0\x05\x07"),  # UDP
        (b"\x05\x01\0\x05\x01\0\x01\x7f\0\0\x01\0\x16", b"\x05\0\x05\x02"),  # a port that is not named
        (b"\x05\x01\0\x05\x01\0\x03\x07no.test\x01\xbb", b"\x05\0\x05\x02"),
        (b"\x05\x01\0\x05\x01\0\x03\x09127.0.0.1\0\x16", b"\x05\0\x05\x02"),
        (b"\x05\x01\0\x05\x01\0\x03\x03::1\0\x16", b"\x05\0\x05\x08"),
        (b"\x05\x01\0\x05\x01\0\x09", b"\x05\0\x05\x08"),
        (b"\x04\x01\0\x50\x7f\0\0\x01\0\n\n", b"HTTP/1.1 400"),  # SOCKS 4
    ],
)
async def test_refused_socks_requests(start: Start, server: Server, sent: bytes, reply: bytes) -> None:
    made = await start(local(server))
    assert (await made.ask(sent)).startswith(reply)
    assert [one.outcome for one in made.broker.connections()] == [Outcome.REFUSED]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1", "fd00::1"]
)
async def test_a_name_that_leads_to_a_private_address_is_refused(start: Start, server: Server, address: str) -> None:
    made = await start(
        Egress([f"evil.test:{server.port}", f"127.0.0.1:{server.port + 1}"], resolver=names(evil=address))
    )
    told = await made.ask(b"CONNECT evil.test:%d HTTP/1.1\r\n\r\n" % server.port)
    assert told.startswith(b"HTTP/1.1 403")
    assert b"an entry has to name that address" in told


async def test_the_address_that_was_checked_is_the_one_connected_to(start: Start, server: Server) -> None:
    """DNS rebinding: a second look-up would lead elsewhere."""
    egress = local(server)
    assert isinstance(egress.resolver, FixedResolver)
    made = await start(egress)
    for _ in range(3):
        await made.ask(b"GET http://ok.test:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % server.port)
    assert egress.resolver.asked == ["ok.test"] * 3
    egress.resolver.names["ok.test"] = ["10.0.0.1", "127.0.0.1"]  # only what is permitted is tried
    assert b" 200 " in await made.ask(b"GET http://ok.test:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % server.port)
    assert {one.address for one in made.broker.connections()} == {"127.0.0.1"}


async def test_redirects_are_new_requests(start: Start, server: Server) -> None:
    server.answer = lambda head: (
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    )
    made = await start(local(server))
    told = await made.ask(b"GET http://ok.test:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % server.port)
    assert b"Location: http://169.254.169.254/\r\n" in told
    assert (await made.ask(b"GET http://169.254.169.254/ HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403")


async def test_a_request_does_not_hide_in_another(start: Start, server: Server) -> None:
    made = await start(local(server))
    inner = b"GET http://no.test/ HTTP/1.1\r\nHost: no.test\r\n\r\n"
    told = await made.ask(b"POST http://ok.test:%d/ HTTP/1.1\r\nContent-Length: 0\r\n\r\n" % server.port + inner)
    assert told.count(b"HTTP/1.1 200 OK") == told.count(b"HTTP/1.1 403 ") == 1
    assert not any(b"no.test" in head for head in server.heads)


async def test_hosts_that_cannot_be_reached(start: Start, server: Server) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    made = await start(Egress([f"127.0.0.1:{port}", "gone.test"], resolver=names()))
    assert (await made.ask(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)).startswith(b"HTTP/1.1 502")
    assert b"the name cannot be resolved" in await made.ask(b"GET http://gone.test/ HTTP/1.1\r\n\r\n")
    assert [one.outcome for one in made.broker.connections()] == [Outcome.FAILED] * 2


async def test_an_answer_that_breaks_off_does_not_look_whole(start: Start, server: Server) -> None:
    server.answer = lambda head: b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"
    made = await start(local(server))
    with pytest.raises(ConnectionResetError):
        await made.ask(b"GET http://ok.test:%d/ HTTP/1.1\r\n\r\n" % server.port)
    await made.settled()
    assert log(made) == [("http", "ok.test", "failed")]


async def test_a_refusal_reaches_a_program_that_still_sends(start: Start, server: Server) -> None:
    made = await start(local(server))
    head = b"POST http://no.test/ HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n"
    assert b"no entry of the allow-list" in await made.ask(head + bytes(4_000_000))


# Bounds


async def test_ten_thousand_connections_wait_outside(start: Start, server: Server) -> None:
    """Beyond the bound nothing is accepted: this process's open files stay few, and all are served in the end."""
    before = open_files()
    server.hold = asyncio.Event()
    made = await start(local(server), 20)
    request = b"GET http://ok.test:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % server.port
    asked = [asyncio.ensure_future(made.ask(request)) for _ in range(80)]
    while server.open < 20:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    held = open_files() - before - len(asked)  # less the clients' own
    assert server.most == 20
    assert held <= 20 * 3 + 10
    server.hold.set()
    assert all(b" 200 " in told for told in await asyncio.gather(*asked))
    assert server.most == 20


async def test_connections_that_say_nothing_end(
    start: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (brokers, http_proxy):
        monkeypatch.setattr(module, "HEAD_S", 0.1)
    made = await start(local(server))
    for said in (b"", b"\x05", b"\x05\x02\0", b"GET http://ok.test/ HTTP/1.1\r\nA: b\r\n"):
        assert await made.ask(said) == b""
    assert log(made) == []


async def test_connections_that_stop_are_cut(start: Start, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.hold = asyncio.Event()
    monkeypatch.setattr(http_proxy, "IDLE_S", 0.1)
    monkeypatch.setattr(connections.Flow.relay, "__defaults__", (0.1,))
    made = await start(local(server))
    tunnel = b"CONNECT ok.test:%d HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n" % server.port
    for said in (tunnel, b"GET http://ok.test:%d/ HTTP/1.1\r\n\r\n" % server.port):
        reader, writer = await made.connect()
        writer.write(said)
        with pytest.raises(ConnectionResetError):
            while await reader.read(1 << 16):
                pass
        writer.close()
    await made.settled()
    assert [(one.outcome, one.why) for one in made.broker.connections()] == [
        (Outcome.CUT, "no byte moved for 0.1 s")
    ] * 2


async def test_a_slow_reader_holds_the_host_back(start: Start) -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        except OSError:
            writer.close()

    listening = await asyncio.start_server(pour, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    made = await start(Egress([f"127.0.0.1:{port}"]))
    reader, writer = await made.connect()
    writer.write(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % port)
    await reader.read(1)
    before = -1
    while sent != before:  # until nothing moves any more
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 64 << 20
    writer.transport.abort()
    listening.close()
    await made.broker.hang_up()
