"""HTTP/1.1 heads and bodies, read strictly (RFC 9112) and sent on in another form.

What two readers could understand differently is refused: a proxy that is laxer than the server behind it lets one
request hide in another.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ramify.sandboxes.egress.settings import TOKEN

LONGEST_HEAD = 64 << 10  # bytes of a request line or status line with its headers
MOST_HEADERS = 256
LONGEST_CHUNK_LINE = 4096
PIECE = 1 << 16

_REQUEST = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,40}) ([\x21-\x7e\x80-\xff]{1,32768}) (HTTP/1\.[01])")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "upgrade", "http2-settings", "expect"),
    }
)

Headers = list[tuple[str, str]]


class BadMessage(Exception):
    """A message that cannot be read in one way only. `status` answers it, if it is a request."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(slots=True)
class Body:
    """How a body ends: after `length` bytes, by its chunks, or with the connection (a response's only)."""

    length: int = 0
    chunked: bool = False
    until_close: bool = False


@dataclass(slots=True)
class Request:
    method: str
    target: str
    version: str
    headers: Headers
    body: Body
    keep_alive: bool


@dataclass(slots=True)
class Response:
    status: int
    line: bytes
    headers: Headers
    body: Body


def values(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    return [value for key, value in headers if key.lower() == name]


async def read_head(reader: asyncio.StreamReader, first: bytes = b"") -> list[bytes]:
    """The lines of a head, without their ends. `first`: bytes that were read already. [] if nothing came. Raises
    `BadMessage`, `asyncio.IncompleteReadError`."""
    lines: list[bytes] = []
    size, rest = 0, first
    while True:
        line = rest + await read_line(reader, LONGEST_HEAD, started=bool(lines or rest))
        rest = b""
        size += len(line)
        if size > LONGEST_HEAD or len(lines) > MOST_HEADERS:
            raise BadMessage(431, "the headers are too long")
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if not line:
            return []
        if not text and lines:
            return lines
        if text:  # an empty line before a request is skipped (RFC 9112, section 2.2)
            lines.append(text)


async def read_line(reader: asyncio.StreamReader, longest: int, *, started: bool = True) -> bytes:
    """A line with its end; b"" at the end of the stream, if nothing of a message came before. Raises `BadMessage` for
    a line that is longer."""
    try:
        line = await reader.readuntil(b"\n")
        if len(line) > longest:
            raise BadMessage(431, "a line is too long")
        return line
    except asyncio.LimitOverrunError:
        raise BadMessage(431, "a line is too long") from None
    except asyncio.IncompleteReadError as error:
        if error.partial or started:
            raise
        return b""


def parse_request(lines: list[bytes]) -> Request:
    """Raises `BadMessage`."""
    found = _REQUEST.fullmatch(lines[0])
    if found is None:
        raise BadMessage(400, "the request line is not HTTP/1.0 or HTTP/1.1")
    method, target, version = (part.decode("latin-1") for part in found.groups())
    headers = _parse_headers(lines[1:])
    length, chunked = _framing(headers)
    if chunked and version == "HTTP/1.0":
        raise BadMessage(400, "HTTP/1.0 has no chunks")
    return Request(method, target, version, headers, Body(length or 0, chunked), _keeps_alive(version, headers))


def parse_response(lines: list[bytes], method: str) -> Response:
    """`method`: of the request. Raises `BadMessage`."""
    found = _STATUS.fullmatch(lines[0])
    if found is None:
        raise BadMessage(502, "the host's answer is not HTTP/1.0 or HTTP/1.1")
    status, headers = int(found[1]), _parse_headers(lines[1:])
    length, chunked = _framing(headers)
    if method == "HEAD" or status in (204, 304) or status < 200:
        body = Body()
    else:
        body = Body(length or 0, chunked, until_close=length is None and not chunked)
    return Response(status, lines[0], headers, body)


def _parse_headers(lines: Iterable[bytes]) -> Headers:
    headers: Headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not TOKEN.fullmatch(name.decode("latin-1")) or _BAD_VALUE.search(value):
            raise BadMessage(400, "a header cannot be read")
        headers.append((name.decode("latin-1"), value.strip(b" \t").decode("latin-1")))
    return headers


def _framing(headers: Headers) -> tuple[int | None, bool]:
    """The length, if one is given, and whether the body is chunked. Raises `BadMessage`."""
    lengths, codings = values(headers, "content-length"), values(headers, "transfer-encoding")
    if codings:
        if lengths or [coding.lower() for coding in codings] != ["chunked"]:
            raise BadMessage(400, "the body's length is given twice, or by a coding other than chunked")
        return None, True
    if not lengths:
        return None, False
    if len(set(lengths)) != 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
        raise BadMessage(400, "the body's length cannot be read")
    return int(lengths[0]), False


def _keeps_alive(version: str, headers: Headers) -> bool:
    said = {word.strip().lower() for name in ("connection", "proxy-connection") for one in values(headers, name)
            for word in one.split(",")}  # fmt: skip
    return "keep-alive" in said if version == "HTTP/1.0" else "close" not in said


def without_hop_by_hop(headers: Headers, *more: str) -> Headers:
    """The headers that go on to the other side, without those in `more`, and without those that `Connection` names;
    the framing always stays."""
    named = {word.strip().lower() for one in values(headers, "connection") for word in one.split(",")}
    named -= {"content-length", "transfer-encoding"}
    gone = _HOP_BY_HOP | named | set(more)
    return [(name, value) for name, value in headers if name.lower() not in gone]


def head(first: bytes, headers: Headers) -> bytes:
    lines = [first, *(f"{name}: {value}".encode("latin-1") for name, value in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def send_body(reader: asyncio.StreamReader, body: Body, send: Callable[[bytes], Awaitable[None]]) -> None:
    """Send a body on as it comes, in its own form, and not one byte that follows it. Raises `BadMessage`,
    `asyncio.IncompleteReadError`."""
    if body.until_close:
        while piece := await reader.read(PIECE):
            await send(piece)
    elif body.chunked:
        await _send_chunks(reader, send)
    else:
        await _send_bytes(reader, body.length, send)


async def _send_bytes(reader: asyncio.StreamReader, length: int, send: Callable[[bytes], Awaitable[None]]) -> None:
    while length:
        piece = await reader.read(min(length, PIECE))
        if not piece:
            raise asyncio.IncompleteReadError(b"", length)
        length -= len(piece)
        await send(piece)


async def _send_chunks(reader: asyncio.StreamReader, send: Callable[[bytes], Awaitable[None]]) -> None:
    """Chunks are written anew, without extensions; trailers are dropped."""
    while True:
        line = await read_line(reader, LONGEST_CHUNK_LINE)
        found = _CHUNK.fullmatch(line.removesuffix(b"\n").removesuffix(b"\r"))
        if found is None:
            raise BadMessage(400, "a chunk's length cannot be read")
        size = int(found[1], 16)
        if not size:
            break
        await send(b"%x\r\n" % size)
        await _send_bytes(reader, size, send)
        if await reader.readexactly(2) != b"\r\n":
            raise BadMessage(400, "a chunk is longer than its length")
        await send(b"\r\n")
    for _ in range(MOST_HEADERS):
        if not (await read_line(reader, LONGEST_CHUNK_LINE)).strip():
            await send(b"0\r\n\r\n")
            return
    raise BadMessage(400, "there are too many trailers")
