"""`GatewayGuard`: the guard of a gateway's server, which answers in the shape of the API that is asked."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match

from ramify.serving.gateway import sse
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.formats.apis import errors_at
from ramify.serving.http_guard import AccessPolicy, AccessRefusal, App, Guard, Scope
from ramify.serving.http_guard import Headers as RawHeaders


class GatewayGuard(Guard):
    """A request for what the gateway does not have may have any content type: it changes nothing, and the answer is
    that it is not here. Clients send files as forms."""

    def __init__(self, app: App, policy: AccessPolicy, routes: list[BaseRoute]) -> None:
        super().__init__(app, policy)
        self._routes = routes

    def refusal(self, method: str, path: str, headers: RawHeaders, http_version: str) -> AccessRefusal | None:
        found = super().refusal(method, path, headers, http_version)
        return None if found is not None and found.status == 415 and not self._serves(method, path) else found

    def body(self, refusal: AccessRefusal, scope: Scope, request_id: str) -> bytes:
        error = ApiError(refusal.status, refusal.code, refusal.message, refusal.param)
        return sse.encode(errors_at(scope["path"], Headers(raw=list(scope["headers"]))).body(error, request_id))

    def _serves(self, method: str, path: str) -> bool:
        scope = {"type": "http", "method": method, "path": path}
        return any(route.matches(scope)[0] is Match.FULL for route in self._routes)
