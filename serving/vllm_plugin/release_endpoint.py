"""`ReleaseEndpoint`: a route of vLLM's server by which a gateway elsewhere says that branches are over.

`--middleware ramify.serving.vllm_plugin.release_endpoint.ReleaseEndpoint`. It takes `POST /v1/ramify/release`, as a
Ramify gateway does, and passes it on to the scheduler by the `socket` of the plug-in's options. A header of the list
of models tells gateways that it is there. Who may list the models may also release: vLLM itself is asked that.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from ramify.serving.errors import BadOptions
from ramify.serving.http_guard import AccessPolicy, App, Message, Receive, Scope, Send
from ramify.serving.protocol import wire
from ramify.serving.protocol.engine_datagrams import EngineDatagrams
from ramify.serving.protocol.releases import release_of
from ramify.serving.vllm_plugin.options import PluginOptions

_PATH, _MODELS = f"/v1{wire.RELEASE_PATH}", "/v1/models"
_LARGEST = 1024 * 1024  # bytes of a release
_JSON_ONLY = AccessPolicy()


class ReleaseEndpoint:
    """ASGI middleware of vLLM's server."""

    def __init__(self, app: App) -> None:
        self._app, self._engine = app, EngineDatagrams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", "")).removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path not in (_PATH, _MODELS) or (engine := _engine_socket(scope)) is None:
            await self._app(scope, receive, send)
        elif path == _MODELS:
            await self._app(scope, receive, _marked(send))
        elif scope["method"] != "POST":
            await _answer(send, 405, {"error": {"message": "send a POST request", "code": "method_not_allowed"}})
        elif await self._may(scope, send):
            await self._release(scope, receive, send, engine)

    async def _may(self, scope: Scope, send: Send) -> bool:
        """Would vLLM list its models for who asks? If not, give its refusal."""
        said: list[Message] = []

        async def keep(message: Message) -> None:
            said.append(message)

        raw = str(scope.get("root_path", "")) + _MODELS
        asked = {**scope, "method": "GET", "path": raw, "raw_path": raw.encode(), "query_string": b""}
        await self._app(asked, _without_body(), keep)
        if said and said[0].get("status") == 200:
            return True
        for message in said:
            await send(message)
        return False

    async def _release(self, scope: Scope, receive: Receive, send: Send, engine: Path) -> None:
        refusal = _JSON_ONLY.content_type("POST", scope["headers"])
        if refusal is not None:
            return await _answer(send, refusal.status, json.loads(refusal.body()))
        try:
            compound_id, branches = _read(await _body(receive))
        except ValueError as error:
            return await _answer(send, 400, {"error": {"message": str(error), "code": "invalid_value"}})
        told = self._engine.release(engine, compound_id, branches)
        return await _answer(send, 200, {"engines": int(told)})


def _engine_socket(scope: Scope) -> Path | None:
    """Where the scheduler listens; None if it does not."""
    config = getattr(getattr(scope.get("app"), "state", None), "vllm_config", None)
    try:
        named = PluginOptions.of(getattr(config, "additional_config", None)).socket
    except BadOptions:
        return None
    path = None if named is None else Path(named)
    return path if path is not None and path.is_socket() else None


def _marked(send: Send) -> Send:
    async def with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (wire.RELEASES_HEADER.encode(), b"1")]
        await send(message)

    return with_header


def _read(body: bytes) -> tuple[str, list[str] | None]:
    """Raises ValueError."""
    try:
        said = json.loads(body)
    except RecursionError as error:
        raise ValueError("the body nests too deep") from error
    if not isinstance(said, dict):
        raise ValueError("the body must be a JSON object")
    return release_of(said)


async def _body(receive: Receive) -> bytes:
    """Raises ValueError if it is too long or its client has left."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ValueError("the client has left")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > _LARGEST:
            raise ValueError(f"the body is longer than {_LARGEST} bytes")
    return bytes(body)


def _without_body() -> Receive:
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # its client stays
        sent = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive


async def _answer(send: Send, status: int, said: dict[str, Any]) -> None:
    body = json.dumps(said).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
