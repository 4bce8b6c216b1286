"""Requests that two readers could understand differently are refused, and bodies end where they say."""

from __future__ import annotations

import asyncio

import pytest

from ramify.sandboxes.egress import http_messages as http
from ramify.sandboxes.egress.http_messages import BadMessage, Body


def reader(data: bytes) -> asyncio.StreamReader:
    made = asyncio.StreamReader(limit=1 << 16)
    made.feed_data(data)
    made.feed_eof()
    return made


async def request(head: bytes) -> http.Request:
    return http.parse_request(await http.read_head(reader(head)))


@pytest.mark.parametrize("ends", [True, False])
async def test_a_line_longer_than_it_may_be_is_refused_whatever_the_buffer_holds(ends: bool) -> None:
    line = b"x" * 5000 + b"\n" * ends
    with pytest.raises((BadMessage, asyncio.IncompleteReadError)) as refused:
        await http.read_line(reader(line), 4096)
    assert isinstance(refused.value, BadMessage) is ends
    assert await http.read_line(reader(line[:4000] + b"\n"), 4096)


START = b"POST http://a.test/ HTTP/1.1\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://a.test/\r\n\r\n",
        b"GET  http://a.test/ HTTP/1.1\r\n\r\n",
        b"GET http://a.test/ HTTP/2.0\r\n\r\n",
        b"GET http://a.test/ x HTTP/1.1\r\n\r\n",
        b"GET http://a.test/\0x HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n",  # TLS
        START + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        START + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        START + b"Content-Length: 1, 1\r\n\r\n",
        START + b"Content-Length: +1\r\n\r\n",
        START + b"Content-Length: -1\r\n\r\n",
        START + b"Content-Length: 0x1\r\n\r\n",
        START + b"Content-Length:\r\n\r\n",
        START + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        START + b"Transfer-Encoding: xchunked\r\n\r\n",
        START + b"Transfer-Encoding : chunked\r\n\r\n",
        START + b"X: 1\r\n folded\r\n\r\n",
        START + b"X: a\0b\r\n\r\n",
        START + b"X: a\rb\r\n\r\n",
        START + b"no colon\r\n\r\n",
        START + b": empty\r\n\r\n",
        b"POST http://a.test/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_ambiguous_requests_are_refused(head: bytes) -> None:
    with pytest.raises(BadMessage) as refused:
        await request(head)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "head", [b"GET /" + b"a" * 70_000, START + b"A: b\r\n" * 300, START + b"A: " + b"b" * 70_000]
)
async def test_long_heads_are_refused(head: bytes) -> None:
    with pytest.raises(BadMessage) as refused:
        await request(head + b" HTTP/1.1\r\n\r\n")
    assert refused.value.status == 431


async def test_a_request_is_read() -> None:
    found = await request(b"\r\n" + START + b"Host: b.test\r\nContent-Length: 3\r\nX-Y:  z \r\n\r\nabc")
    assert (found.method, found.target, found.version) == ("POST", "http://a.test/", "HTTP/1.1")
    assert found.headers == [("Host", "b.test"), ("Content-Length", "3"), ("X-Y", "z")]
    assert (found.body, found.keep_alive) == (Body(3), True)


def test_hop_by_hop_headers_stay_behind() -> None:
    headers = [("Connection", "close, X-Own, content-length"), ("X-Own", "1"), ("Content-Length", "3"), ("A", "b"),
               ("Proxy-Authorization", "c"), ("Upgrade", "websocket"), ("TE", "trailers")]  # fmt: skip
    assert http.without_hop_by_hop(headers, "a") == [("Content-Length", "3")]


async def sent(data: bytes, body: Body) -> tuple[bytes, bytes]:
    """What is sent on, and what is left unread."""
    source, pieces = reader(data), bytearray()

    async def send(piece: bytes) -> None:
        pieces.extend(piece)

    await http.send_body(source, body, send)
    return bytes(pieces), await source.read()


async def test_not_one_byte_after_a_body_goes_on() -> None:
    assert await sent(b"abcGET /", Body(3)) == (b"abc", b"GET /")
    chunks = b"3;ext=1\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET /"
    assert await sent(chunks, Body(chunked=True)) == (b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n", b"GET /")
    assert await sent(b"", Body()) == (b"", b"")
    assert await sent(b"abc", Body(until_close=True)) == (b"abc", b"")


@pytest.mark.parametrize(
    "data", [b"x\r\n", b"-1\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"\r\n", b"3 4\r\n", b"f" * 20 + b"\r\n"]
)
async def test_bad_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        await sent(data, Body(chunked=True))


@pytest.mark.parametrize(("data", "body"), [(b"ab", Body(3)), (b"3\r\nab", Body(chunked=True))])
async def test_a_body_that_ends_early_is_an_error(data: bytes, body: Body) -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        await sent(data, body)
