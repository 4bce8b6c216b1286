"""Access checks before every route of our HTTP servers.

Every page that is open in a browser on this machine can reach a server on a loopback port. Three checks keep such
pages out, without any key:

- `Host` must name this server. A page whose own name was made to resolve to this machine (DNS rebinding) sends its
  own name.
- `Sec-Fetch-Site` and `Origin` must not name another site. Browsers set both, and pages cannot change them.
- A method that may change something needs `content-type: application/json`. A page cannot send that to another site
  without a CORS preflight, which is granted to named origins alone.

Programs (curl, OpenAI's clients, httpx) send no `Origin`, so the second check never applies to them. Pages of the
origins that a server names pass it, and get the CORS headers that browsers want. Start at `AccessPolicy`; `Guard` is
the ASGI middleware that applies it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

Headers = Sequence[tuple[bytes, bytes]]  # as ASGI has them
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

JSON = "application/json"
REQUEST_ID = "x-request-id"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that change nothing here
_OWN_SITE = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_](?:[a-z0-9_.-]{0,253})))(?::([0-9]{0,5}))?")
_NAME = re.compile(r"[!-~]{1,200}")
_ABSOLUTE = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
_PRIVATE_NETWORK = b"access-control-request-private-network"
_ANSWER_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")]


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """Why a request is refused. `param` is the header at fault."""

    status: int
    code: str
    message: str
    param: str

    def body(self) -> bytes:
        """The refusal in the shape of OpenAI's errors."""
        said = {"message": self.message, "type": "invalid_request_error", "param": self.param, "code": self.code}
        return json.dumps({"error": said}).encode()


class Keys:
    """API keys, one of which a client must show. Without any, everybody is let in."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]
        self._owners: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def shown_in(self, authorization: bytes) -> bool:
        """Does that header hold one of the keys? The comparison takes the same time for a wrong key and a right
        one."""
        return self._found(authorization) is not None

    def owner(self, authorization: bytes) -> str:
        """The name of the client that shows a key: the same for the same key, also in another process, and nothing
        that the key could be told from. Empty where there are not several clients to tell apart."""
        found = self._found(authorization)
        if found is None or len(set(self._keys)) < 2:
            return ""
        if found not in self._owners:
            self._owners[found] = self.name(self._keys[found].decode())
        return self._owners[found]

    @staticmethod
    def name(key: str) -> str:
        """A name for a key. Slow on purpose: names stand in logs, and keys may be short."""
        return hashlib.pbkdf2_hmac("sha256", key.encode(), b"ramify client", 50_000)[:4].hex()

    def _found(self, authorization: bytes) -> int | None:
        scheme, _, key = authorization.partition(b" ")  # a scheme is case-insensitive (RFC 9110)
        shown = key.strip()
        fits = [hmac.compare_digest(shown, one) for one in self._keys]
        return fits.index(True) if scheme.lower() == b"bearer" and shown and any(fits) else None


@dataclass(frozen=True)
class AccessPolicy:
    """Which requests a server answers.

    names: the server's own host names, besides the loopback addresses and `localhost`.
    port: the only port that `Host` may name. None: any, since a tunnel has another one.
    any_address: the server listens beyond this machine. `Host` may then be any IP address, which no DNS server can
        point elsewhere.
    origins: other sites whose pages may call, each as browsers send it (`https://app.example`).
    keys: beyond this machine, a valid key replaces the right `Host`, because a page has none.
    advice: ends a refusal of a wrong host; NAME stands for that host.
    """

    names: frozenset[str] = frozenset()
    port: int | None = None
    any_address: bool = False
    keys: Keys = Keys()  # noqa: RUF009 - never changed
    origins: frozenset[str] = frozenset()
    advice: str = "use the address that it printed when it started"

    def refusal(self, method: str, headers: Headers, http_version: str = "1.1") -> AccessRefusal | None:
        """Why the request is refused; None if it may go on to its route."""
        return self.host(headers, http_version) or self.site(headers) or self.content_type(method, headers)

    def host(self, headers: Headers, http_version: str = "1.1") -> AccessRefusal | None:
        """Check that `Host` names this server. HTTP/1.0 has no `Host`, and no browser speaks it."""
        said = _all(headers, b"host")
        if not said and http_version in ("1.0", "0.9"):
            return None
        if len(said) != 1:
            return _misdirected(400, f"host: a request needs one Host header, not {len(said)}")
        try:
            name, port = authority(said[0].decode("latin-1"))
        except ValueError:
            return _misdirected(400, "host: the Host header is not a host name with an optional port")
        if self._is_ours(name) and self.port in (None, _DEFAULT_PORTS["http"] if port is None else port):
            return None
        if self.any_address and self.keys:
            if any(self.keys.shown_in(one) for one in shown_keys(headers)):
                return None
            why = f"the key is missing or wrong, which a request for {name!r} needs: send Authorization: Bearer KEY"
            return AccessRefusal(401, "invalid_api_key", f"{why}, or {self._advice(name)}", "authorization")
        return _misdirected(421, f"host: {name!r} is not a name of this server: {self._advice(name)}")

    def site(self, headers: Headers) -> AccessRefusal | None:
        """Check that no page of another site asks, but for the named ones. Another port of this machine is another
        site, too."""
        if self.allowed_origin(headers) is not None:
            return None
        if not _OWN_SITE.issuperset(_all(headers, b"sec-fetch-site")):
            return _cross_site("sec-fetch-site")
        origins = _all(headers, b"origin")
        if origins and (len(origins) > 1 or not _same_origin(origins[0], _all(headers, b"host"))):
            return _cross_site("origin")
        return None

    def allowed_origin(self, headers: Headers) -> bytes | None:
        """The named origin whose page asks, if one does."""
        said = _all(headers, b"origin")
        return said[0] if len(said) == 1 and said[0].decode("latin-1").lower() in self.origins else None

    def content_type(self, method: str, headers: Headers) -> AccessRefusal | None:
        """Check that a request which may change something declares JSON."""
        if method in SAFE_METHODS:
            return None
        said = [value.partition(b";")[0].strip().lower() for value in _all(headers, b"content-type")]
        if said == [JSON.encode()]:
            return None
        message = (
            f"content-type: a {method[:20]} request needs it to be {JSON} (with curl: -H 'content-type: {JSON}')"
        )
        return AccessRefusal(415, "unsupported_media_type", message, "content-type")

    def _is_ours(self, name: str) -> bool:
        address = as_address(name)
        if address is not None and (address.is_loopback or self.any_address):
            return True
        return name == "localhost" or name in self.names

    def _advice(self, name: str) -> str:
        return self.advice.replace("NAME", name)


class Guard:
    """ASGI middleware that asks the policy before anything else sees a request."""

    def __init__(self, app: App, policy: AccessPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        method = scope.get("method", "GET")  # a WebSocket begins with a GET
        refusal = self.refusal(method, scope["path"], scope["headers"], scope.get("http_version", "1.1"))
        if scope["type"] == "websocket":
            await (self._app(scope, receive, send) if refusal is None else _close(receive, send))
            return

        origin = self._policy.allowed_origin(scope["headers"])
        added = [*_ANSWER_HEADERS, *(() if origin is None else _cors(origin))]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        if refusal is None and origin is not None and method == "OPTIONS":
            await _grant(scope["headers"], with_headers)
        elif refusal is None:
            await self._app(scope, receive, with_headers)
        else:
            named = request_id(scope["headers"])
            added.append((REQUEST_ID.encode(), named.encode()))
            await _answer(refusal.status, self.body(refusal, scope, named), with_headers)

    def refusal(self, method: str, path: str, headers: Headers, http_version: str) -> AccessRefusal | None:
        """The policy's refusal. A server that needs more checks overrides this."""
        return self._policy.refusal(method, headers, http_version)

    def body(self, refusal: AccessRefusal, scope: Scope, request_id: str) -> bytes:
        """The body of a refusal, as JSON."""
        return refusal.body()


def request_id(headers: Headers = ()) -> str:
    """The name of a request: its own if it gave one, else a new one, which no other server has."""
    said = _all(headers, REQUEST_ID.encode())
    own = said[0].decode("latin-1") if said else ""
    return own if _NAME.fullmatch(own) else f"req_{secrets.token_hex(12)}"


def shown_keys(headers: Headers) -> list[bytes]:
    """The `authorization` of a request; else what `x-api-key`, where Anthropic's clients put their key, stands
    for."""
    return _all(headers, b"authorization") or [b"Bearer " + key for key in _all(headers, b"x-api-key")]


def authority(text: str) -> tuple[str, int | None]:
    """The host and port of a `Host` header or an origin: lower case, addresses in one spelling, no dot at the end.

    Raises ValueError.
    """
    found = _AUTHORITY.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text[:80]!r} is not a host name")
    address, name, port = found.groups()
    host = name.removesuffix(".") if address is None else str(_unmapped(ipaddress.IPv6Address(address)))
    if port and int(port) > 65535:
        raise ValueError(f"{text[:80]!r} has an invalid port")
    return host, int(port) if port else None


def web_origin(text: str) -> str:
    """An origin as browsers send it: scheme, host, and a port unless it is the scheme's. Raises ValueError."""
    scheme, found, rest = text.strip().lower().rstrip("/").partition("://")
    if not found or scheme not in _DEFAULT_PORTS or not rest:
        raise ValueError(f"{text[:80]!r} is not an origin, such as https://app.example or http://localhost:3000")
    host, port = authority(rest)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" + (f":{port}" if port not in (None, _DEFAULT_PORTS[scheme]) else "")


def as_address(name: str) -> Address | None:
    """The IP address that this text is; None for a name."""
    try:
        return _unmapped(ipaddress.ip_address(name.partition("%")[0]))
    except ValueError:
        return None


def stays_here(host: str) -> bool:
    """True if a server bound to `host` would listen on loopback addresses only. Raises OSError for a name that does
    not resolve."""
    found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = [as_address(str(one[4][0])) for one in found]
    return bool(addresses) and all(one is not None and one.is_loopback for one in addresses)


def with_target_host(target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """If a request's target is a whole URL, its host replaces `Host` (RFC 9112, 3.2.2)."""
    found = _ABSOLUTE.match(target)
    if found is not None and len(_all(headers, b"host")) <= 1:
        headers[:] = [one for one in headers if one[0].lower() != b"host"] + [(b"host", found[1])]


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _all(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip() for one, value in headers if one.lower() == name]


def _same_origin(origin: bytes, hosts: Sequence[bytes]) -> bool:
    """Is the asking page one of this server's own? It may have come through a proxy that speaks TLS."""
    scheme, found, rest = origin.decode("latin-1").lower().partition("://")
    if not found or scheme not in _DEFAULT_PORTS or len(hosts) != 1:
        return False
    default = _DEFAULT_PORTS[scheme]
    try:
        (name, port), (own_name, own_port) = authority(rest), authority(hosts[0].decode("latin-1"))
    except ValueError:
        return False
    return (name, port or default) == (own_name, own_port or default)


def _misdirected(status: int, message: str) -> AccessRefusal:
    return AccessRefusal(status, "host_not_allowed", message, "host")


def _cross_site(header: str) -> AccessRefusal:
    return AccessRefusal(
        403, "cross_site", f"{header}: a page of another site sent this request: it is refused", header
    )


def _cors(origin: bytes) -> Headers:
    """What lets a page of that origin read the answer."""
    exposed = b"x-request-id, request-id, retry-after, retry-after-ms, x-should-retry"
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", exposed),
        (b"vary", b"origin"),
    ]


async def _grant(headers: Headers, send: Send) -> None:
    """Answer a preflight: the page may send the request that it asks for."""
    granted = [
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", b", ".join(_all(headers, b"access-control-request-headers")) or b"*"),
        (b"access-control-max-age", b"600"),
        *((b"access-control-allow-private-network", b"true") for _ in _all(headers, _PRIVATE_NETWORK)),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": granted})
    await send({"type": "http.response.body", "body": b""})


async def _answer(status: int, body: bytes, send: Send) -> None:
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _close(receive: Receive, send: Send) -> None:
    await receive()  # `websocket.connect`
    await send({"type": "websocket.close", "code": 1008})
