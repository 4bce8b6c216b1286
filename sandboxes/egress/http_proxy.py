"""The broker as an HTTP proxy (RFC 9110, RFC 9112): CONNECT, requests for absolute addresses, and `/-/HOST/…`.

Every request is checked by itself, also the later ones of one connection. A request goes on over a connection of its
own with the target's own Host header, whatever the world wrote. To a host with a credential it goes by HTTPS.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from ramify.sandboxes.egress import http_messages as http
from ramify.sandboxes.egress.connections import IDLE_S, LOST, Flow, Pipe, name_localhost
from ramify.sandboxes.egress.errors import EndOfConnection, Refused
from ramify.sandboxes.egress.hosts import Target, read_target
from ramify.sandboxes.egress.http_messages import BadMessage, Request, Response
from ramify.sandboxes.egress.settings import FORWARD_PATH, HTTP_PORT, HTTPS_PORT, Credentials, Header, Place

HEAD_S = 30.0  # for a whole head of a request, and for the time between two requests
FORBIDDEN, BAD_GATEWAY, NO_METHOD = 403, 502, 405
_REASONS = {400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
            502: "Bad Gateway"}  # fmt: skip
_ABSOLUTE = re.compile(r"(https?)://([^/?#]*)([^#]*)", re.IGNORECASE)
_FORWARD = re.compile(re.escape(FORWARD_PATH) + r"([^/?#]+)([^#]*)")


class Connector(Protocol):
    """Makes the connections that the policy allows."""

    @property
    def credentials(self) -> Credentials: ...

    def connection(
        self, protocol: str, target: Target, world: Pipe, *, tls: bool = False
    ) -> AbstractAsyncContextManager[Flow]:
        """Raises `Refused`, `Unreachable`; both are in the log then."""
        ...

    def refuse(self, protocol: str, host: str, port: int, why: str) -> None:
        """Note in the log what could not be read."""
        ...


@dataclass(frozen=True, slots=True)
class Errand:
    """Where a request goes. `seen`: the beginning of the target's addresses as the world sees them."""

    target: Target
    path: str
    tls: bool
    seen: str
    header: Header | None = None

    @property
    def authority(self) -> str:
        """The target as the Host header has it."""
        usual = self.target.port == (HTTPS_PORT if self.tls else HTTP_PORT)
        return str(self.target).rpartition(":")[0] if usual else str(self.target)


async def serve_http(connector: Connector, world: Pipe, first: bytes, fixed: Target | None = None) -> None:
    """Serve requests until the world ends the connection. `first`: a byte that was read already. `fixed`: where all
    requests go, at a port of the world that stands for one of the host."""
    while True:
        request = None
        try:
            async with asyncio.timeout(HEAD_S):
                lines = await http.read_head(world.reader, first)
            if not lines:
                return
            first = b""
            request = http.parse_request(lines)
            if request.method == "CONNECT":
                await _tunnel(connector, world, request)
                return
            if not await _pass_on(connector, world, request, fixed):
                return
        except TimeoutError:
            return
        except BadMessage as error:
            connector.refuse("http", "" if request is None else _host_part(request.target), 0, error.why)
            await answer(world, error.status, error.why)
            return


async def _tunnel(connector: Connector, world: Pipe, request: Request) -> None:
    try:
        target = name_localhost(read_target(request.target))
    except Refused as error:
        connector.refuse("connect", _host_part(request.target), 0, error.why)
        await answer(world, FORBIDDEN, error.why)
        return
    try:
        async with connector.connection("connect", target, world) as flow:
            world.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await flow.relay()
    except EndOfConnection as error:
        await answer(world, FORBIDDEN if isinstance(error, Refused) else BAD_GATEWAY, error.why)


async def _pass_on(connector: Connector, world: Pipe, request: Request, fixed: Target | None) -> bool:
    """Pass on one request and its answer. Whether another request may follow."""
    if request.method.upper() == "TRACE":  # it would show the world its credentials
        raise BadMessage(NO_METHOD, "TRACE is not passed on")
    try:
        errand = _errand(request, connector.credentials, fixed)
    except Refused as error:
        connector.refuse("http", _host_part(request.target), 0, error.why)
        await answer(world, FORBIDDEN, error.why)
        return False
    try:
        async with connector.connection("http", errand.target, world, tls=errand.tls) as flow:
            return await _exchange(flow, request, errand)
    except EndOfConnection as error:
        await answer(world, FORBIDDEN if isinstance(error, Refused) else BAD_GATEWAY, error.why)
        return False


def _errand(request: Request, credentials: Credentials, fixed: Target | None) -> Errand:
    """Raises `Refused`, `BadMessage`."""
    if fixed is not None and request.target.startswith("/"):
        errand = Errand(fixed, request.target, tls=False, seen=f"http://{fixed}")
    elif found := _ABSOLUTE.fullmatch(request.target):
        scheme, host, path = found[1].lower(), found[2], found[3]
        tls = scheme == "https"
        target = name_localhost(read_target(host, HTTPS_PORT if tls else HTTP_PORT))
        errand = Errand(target, path if path.startswith("/") else f"/{path}", tls, f"{scheme}://{host}")
    elif found := _FORWARD.fullmatch(request.target):
        target = name_localhost(read_target(found[1], HTTPS_PORT))
        errand = Errand(
            target, found[2] if found[2].startswith("/") else f"/{found[2]}", True, FORWARD_PATH + found[1]
        )
    else:
        raise BadMessage(
            400, f"this is a proxy: ask for http://HOST/…, use CONNECT, or {FORWARD_PATH}HOST/… for https://HOST/…"
        )
    place = credentials.place_for(errand.target)
    if place is None:
        return errand
    return _with_credential(errand, place, credentials)


def _host_part(text: str) -> str:
    """Of a target that cannot be read, what is for the log: no path and no password."""
    rest = text.partition("://")[2] or text.removeprefix(FORWARD_PATH)
    return re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]


def _with_credential(errand: Errand, place: Place, credentials: Credentials) -> Errand:
    """A credential goes over TLS, or where the user said http://, and nowhere else."""
    if errand.tls and not place.tls:
        return errand
    return replace(errand, target=place.target, tls=place.tls, header=credentials.header_for(place))


async def _exchange(flow: Flow, request: Request, errand: Errand) -> bool:
    """Send the request and deliver the answer. Whether the world's connection can carry another request."""
    exchange = _Exchange(flow, request, errand)
    asking = asyncio.ensure_future(exchange.ask())
    try:
        await flow.watch(IDLE_S, exchange.deliver())
    except (BadMessage, *LOST) as error:
        if flow.received or flow.cut_because:
            raise ConnectionResetError("an answer broke off") from error
        bad = exchange.bad_request or BadMessage(BAD_GATEWAY, "the host gave no answer that can be read")
        await answer(flow.world, bad.status, bad.why)
        return False
    finally:
        asking.cancel()
        await asyncio.wait({asking})
    return exchange.keeps and not flow.cut_because


@dataclass(slots=True)
class _Exchange:
    """One request and its answer, both ways at once: a host may answer before it has read all."""

    flow: Flow
    request: Request
    errand: Errand
    asked: bool = False  # the whole request was sent
    keeps: bool = False  # the world's connection can carry another request
    bad_request: BadMessage | None = None

    async def ask(self) -> None:
        flow, request = self.flow, self.request
        try:
            await flow.send(_request_head(request, self.errand))
            if "100-continue" in (value.lower() for value in http.values(request.headers, "expect")):
                flow.world.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await http.send_body(flow.world.reader, request.body, flow.send)
            self.asked = True
        except BadMessage as error:
            self.bad_request = error
            flow.host.abort()
        except asyncio.IncompleteReadError:  # the world has ended the connection
            flow.host.abort()
        except OSError:
            if flow.world.reader.exception() is not None:
                flow.host.abort()  # else the host reads no more, and may still answer

    async def deliver(self) -> None:
        flow = self.flow
        response = await _read_response(flow, self.request)
        self.keeps = self.request.keep_alive and self.asked and not response.body.until_close
        await flow.deliver(_response_head(response, self.errand, self.keeps))
        await http.send_body(flow.host.reader, response.body, flow.deliver)


async def _read_response(flow: Flow, request: Request) -> Response:
    while True:
        lines = await http.read_head(flow.host.reader)
        if not lines:
            raise asyncio.IncompleteReadError(b"", None)
        response = http.parse_response(lines, request.method)
        if response.status == 101:
            raise BadMessage(BAD_GATEWAY, "the host switches protocols, which was not asked for")
        if response.status >= 200:
            return response


def _request_head(request: Request, errand: Errand) -> bytes:
    own = () if errand.header is None else (errand.header.name.lower(),)
    headers = [("Host", errand.authority), *http.without_hop_by_hop(request.headers, "host", *own)]
    if errand.header is not None:
        headers.append((errand.header.name, errand.header.value))
    line = f"{request.method} {errand.path} {request.version}".encode("latin-1")
    return http.head(line, [*headers, ("Connection", "close")])


def _response_head(response: Response, errand: Errand, keeps: bool) -> bytes:
    headers = http.without_hop_by_hop(response.headers)
    headers = [(name, _seen(value, errand) if name.lower() == "location" else value) for name, value in headers]
    return http.head(response.line, [*headers, ("Connection", "keep-alive" if keeps else "close")])


def _seen(location: str, errand: Errand) -> str:
    """A redirect to the same host, in the form in which the world asked for it. Others stay as they are, and are
    checked when the world asks for them."""
    there = f"{'https' if errand.tls else 'http'}://{errand.authority}"
    if location == there or location.startswith((f"{there}/", f"{there}?")):
        return errand.seen + location[len(there) :]
    if location.startswith("/") and not location.startswith("//") and errand.seen.startswith(FORWARD_PATH):
        return errand.seen + location
    return location


async def answer(world: Pipe, status: int, why: str) -> None:
    """A short answer of the broker's own, which ends the connection."""
    text = f"ramify egress: {why}\n".encode("utf-8", "replace")
    line = f"HTTP/1.1 {status} {_REASONS[status]}".encode()
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
    headers += [("X-Ramify-Egress", "refused" if status != BAD_GATEWAY else "failed"), ("Connection", "close")]
    world.writer.write(http.head(line, headers) + text)
    await world.writer.drain()
