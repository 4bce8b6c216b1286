"""Credentials that the broker adds: only to their host, and only over the right certificate."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from ramify.sandboxes.egress.settings import Egress, Header
from tests.sandboxes.egress.brokered_hosts import SECRET, local
from tests.sandboxes.egress.conftest import Authority, Server, Start, ok


def with_key(server: Server, authority: Authority, place: str) -> Egress:
    header = Header("authorization", SECRET)
    return local(server, credentials={place: header}, tls=authority.client)


@pytest.mark.parametrize("address", ["http://ok.test:{port}/v1", "https://ok.test:{port}/v1", "/-/ok.test:{port}/v1"])
async def test_credential_is_added_outside(
    start: Start, tls_server: Server, authority: Authority, address: str
) -> None:
    made = await start(with_key(tls_server, authority, f"ok.test:{tls_server.port}"))
    tls_server.answer = lambda head: ok(b"{}")
    told = await made.ask(
        f"GET {address.format(port=tls_server.port)} HTTP/1.1\r\nAuthorization: mine\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    assert told.endswith(b"{}")
    (head,) = tls_server.heads
    assert head.startswith(b"GET /v1 HTTP/1.1\r\nHost: ok.test:%d\r\n" % tls_server.port)
    assert head.lower().count(b"authorization") == 1
    assert SECRET.encode() in head
    assert "sk-1234" not in repr(made.broker.connections()) + told.decode()


async def test_credential_goes_nowhere_else(
    start: Start, server: Server, tls_server: Server, authority: Authority
) -> None:
    """Not in plain text, not through a tunnel, not to another port, and not where a redirect leads."""
    key = {f"ok.test:{tls_server.port}": Header("authorization", SECRET)}
    more = (f"ok.test:{tls_server.port}", f"127.0.0.1:{tls_server.port}", f"evil.test:{server.port}")
    made = await start(local(server, *more, credentials=key, tls=authority.client))
    for target in (f"http://ok.test:{server.port}/", f"http://evil.test:{server.port}/"):
        await made.ask(f"GET {target} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
    assert len(server.heads) == 2
    assert not any(SECRET.encode() in head for head in server.heads)
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
    writer.write(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % tls_server.port)
    await reader.readuntil(b"\r\n\r\n")
    await writer.start_tls(authority.client, server_hostname="ok.test")
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    writer.close()
    assert len(tls_server.heads) == 1
    assert SECRET.encode() not in tls_server.heads[0]


async def test_a_host_without_the_right_certificate_gets_no_credential(
    start: Start, tls_server: Server, authority: Authority
) -> None:
    egress = with_key(tls_server, authority, f"ok.test:{tls_server.port}")
    made = await start(Egress(egress.allow, egress.credentials, egress.resolver, ssl.create_default_context()))
    told = await made.ask(b"GET http://ok.test:%d/ HTTP/1.1\r\n\r\n" % tls_server.port)
    assert told.startswith(b"HTTP/1.1 502")
    assert b"TLS" in told
    assert tls_server.heads == []


async def test_redirects_of_the_same_host_keep_the_form(
    start: Start, tls_server: Server, authority: Authority
) -> None:
    made = await start(with_key(tls_server, authority, f"ok.test:{tls_server.port}"))
    there = f"ok.test:{tls_server.port}"
    for asked, location, seen in (
        (f"/-/{there}/a", "/b", f"/-/{there}/b"),
        (f"/-/{there}/a", f"https://{there}/b?c", f"/-/{there}/b?c"),
        (f"http://{there}/a", f"https://{there}/b", f"http://{there}/b"),
        (f"http://{there}/a", "https://other.test/b", "https://other.test/b"),
        (f"/-/{there}/a", "//other.test/b", "//other.test/b"),
    ):
        answer = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
        tls_server.answer = lambda head, answer=answer: answer  # type: ignore[misc]
        told = await made.ask(f"GET {asked} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        assert f"Location: {seen}\r\n".encode() in told


async def test_credential_for_a_gateway_of_this_machine(start: Start, server: Server) -> None:
    made = await start(local(server, credentials={f"http://127.0.0.1:{server.port}": Header("X-Key", SECRET)}))
    await made.ask(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Key: mine\r\nConnection: close\r\n\r\n", server.port)
    (head,) = server.heads
    assert head.count(b"X-Key") == 1
    assert SECRET.encode() in head
