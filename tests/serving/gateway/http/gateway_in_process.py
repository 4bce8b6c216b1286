"""A gateway in this process, and clients that reach it without a socket."""

from __future__ import annotations

import httpx
from starlette.applications import Starlette

from ramify.serving.gateway.http.app import create_gateway

MESSAGES = [{"role": "user", "content": "hi"}]


def client_of(app: Starlette, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1", headers=headers)


def gateway(model: httpx.AsyncBaseTransport, **options: object) -> Starlette:
    return create_gateway("http://engine", slots=2, transport=model, **options)  # type: ignore[arg-type]


def events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
