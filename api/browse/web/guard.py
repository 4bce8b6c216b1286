"""Access control: only requests with the printed address, from our page, on this machine.

The server listens on loopback, which keeps other machines out, but neither other programs of any user here nor pages
of other sites in the user's browser. Against programs, every path starts with a random token, so the page's own files
and answers need no cookie. Against other sites, there are the checks that all our servers share
(`ramify.serving.http_guard`), and no answer carries a CORS header. The one path that stores something requires more:
a JSON `Content-Type`, the token in a header, which another site's page cannot send without permission (CORS), and no
foreign `Origin`. The page itself may not load anything from elsewhere, be framed, or turn text into markup (trusted
types).
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
_METHODS = ("GET", "HEAD")  # for all other paths


def new_token() -> str:
    """192 random bits, safe in a URL."""
    return secrets.token_urlsafe(24)


def hosts(port: int) -> AccessPolicy:
    """The policy for a page on that port of this machine."""
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
            raise RuntimeError(f"the page only speaks HTTP, not {scope['type']}")

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
            return _refused(421, "wrong host name: open the address that `ramify browse --web` printed")
        _, first, rest = (*scope["path"].split("/", 2), "", "")[:3]
        known = hmac.compare_digest(first.encode("utf-8", "surrogateescape"), self._token.encode())
        if not known or not scope["path"].startswith(f"/{first}/"):
            return _refused(404, "not found: open the address that `ramify browse --web` printed, with its token")
        if self._access.site(headers) is not None and (rest or scope["method"] != "GET"):
            return _refused(403, "the request came from another site")
        if scope["method"] == "POST" and rest == WRITES:
            return self._refusal_to_write(headers)
        if scope["method"] not in _METHODS:
            return _refused(405, "only GET and HEAD are allowed")
        if (refusal := self._access.content_type(scope["method"], headers)) is not None:
            return _refused(refusal.status, refusal.message)
        return None

    def _refusal_to_write(self, headers: Headers) -> JSONResponse | None:
        if (refusal := self._access.content_type("POST", headers)) is not None:
            return _refused(refusal.status, refusal.message)
        tokens = [value for name, value in headers if name.lower() == TOKEN_HEADER.encode()]
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0], self._token.encode()):
            return _refused(403, f"send the page's token in the header {TOKEN_HEADER}")
        return None


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status)
