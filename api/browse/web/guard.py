"""Who is let in: whoever knows the address that was printed, from a page of ours, on this machine.

The server listens on loopback, which keeps other machines out and nobody else: any program of any user here can
connect, and so can a page of any site that the user has open. Against the first stands a random token, the first part
of every path, so that the page's own files and its answers have it in common and no cookie is needed. Against the
second stand the checks that all our servers share (`ramify.serving.http_guard`), and that no answer carries a CORS
header. The one path that stores something asks for more: a body that is JSON by its `Content-Type`, the token in a
header of its own, which a page elsewhere cannot send unless the server agrees first (CORS), and no `Origin` but ours.
The page itself may load nothing from elsewhere, nor be framed, nor turn text into markup (trusted types).
"""

from __future__ import annotations

import hmac
import secrets

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramify.serving.http_guard import AccessPolicy, Headers

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
TOKEN_HEADER = "x-ramify-token"
WRITES = "api/answers"
"""The one path that stores something."""
_METHODS = ("GET", "HEAD")  # of all others: the page looks


def new_token() -> str:
    """192 random bits, fit for an address."""
    return secrets.token_urlsafe(24)


def hosts(port: int) -> AccessPolicy:
    """Whom a page on that port of this machine answers."""
    return AccessPolicy(port=port)


class Guard:
    """ASGI middleware. `access` is the policy that all our servers share; the token is the page's own."""

    def __init__(self, app: ASGIApp, token: str, access: AccessPolicy) -> None:
        self._app = app
        self._token = token
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the page speaks HTTP alone, not {scope['type']}")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
            return
        await self._app({**scope, "root_path": f"/{self._token}"}, receive, with_headers)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = scope["headers"]
        if self._access.host(headers, scope.get("http_version", "1.1")) is not None:
            return _refused(421, "this address is not ours: open the one that `ramify browse --web` printed")
        _, first, rest = (*scope["path"].split("/", 2), "", "")[:3]
        known = hmac.compare_digest(first.encode("utf-8", "surrogateescape"), self._token.encode())
        if not known or not scope["path"].startswith(f"/{first}/"):
            return _refused(404, "nothing here: open the address that `ramify browse --web` printed, token and all")
        if self._access.site(headers) is not None and (rest or scope["method"] != "GET"):
            return _refused(403, "another site asked for this")
        if scope["method"] == "POST" and rest == WRITES:
            return self._refusal_to_write(headers)
        if scope["method"] not in _METHODS:
            return _refused(405, "the page only looks: GET and HEAD")
        if (refusal := self._access.content_type(scope["method"], headers)) is not None:
            return _refused(refusal.status, refusal.message)
        return None

    def _refusal_to_write(self, headers: Headers) -> JSONResponse | None:
        if (refusal := self._access.content_type("POST", headers)) is not None:
            return _refused(refusal.status, refusal.message)
        tokens = [value for name, value in headers if name.lower() == TOKEN_HEADER.encode()]
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0], self._token.encode()):
            return _refused(403, f"an answer is sent with the page's token in {TOKEN_HEADER}")
        return None


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status)
