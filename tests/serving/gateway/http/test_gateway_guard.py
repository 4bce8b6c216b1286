"""What the gateway does not have is answered so, whatever the content type, and refusals have the API's shape."""

from __future__ import annotations

import httpx
import pytest

from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.http.gateway_guard import GatewayGuard
from ramify.serving.http_guard import AccessPolicy, Keys
from ramify.serving.testing import ScriptedModel


def client(policy: AccessPolicy = AccessPolicy()) -> httpx.AsyncClient:  # noqa: B008 - never changed
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "ok"))
    guarded = GatewayGuard(app, policy, app.routes)
    return httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://localhost/v1")


@pytest.mark.parametrize("path", ["/files", "/audio/transcriptions", "/images/edits", "/uploads", "/nothing"])
async def test_a_form_for_an_endpoint_that_is_not_here_is_a_404(path: str) -> None:
    async with client() as one:
        answer = await one.post(path, files={"file": b"x"}, data={"purpose": "batch"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "path")


@pytest.mark.parametrize("path", ["/models/m", "/responses", "/chat/completions"])
async def test_a_method_that_is_not_here_is_a_405(path: str) -> None:
    async with client() as one:
        answer = await one.delete(path)
    assert answer.status_code == 405 and answer.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/responses", "/messages", "/ramify/cancel", "/ramify/release"]
)
async def test_a_form_for_an_endpoint_that_is_here_is_refused(path: str) -> None:
    async with client() as one:
        answer = await one.post(path, files={"file": b"x"})
        other = await one.post(path, content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == other.status_code == 415
    assert answer.json()["error"]["code" if path != "/messages" else "param"]


async def test_a_page_of_another_site_is_refused_everywhere() -> None:
    async with client() as one:
        answer = await one.post("/files", files={"file": b"x"}, headers={"origin": "http://evil.test"})
    assert answer.status_code == 403


async def test_anthropics_clients_are_refused_in_their_shape() -> None:
    beyond = AccessPolicy(any_address=True, keys=Keys(["k"]))
    async with client(beyond) as one:
        answer = await one.post("/messages", json={}, headers={"host": "other.test", "x-request-id": "mine"})
    said = answer.json()
    assert (answer.status_code, said["type"], said["error"]["type"]) == (401, "error", "authentication_error")
    assert said["request_id"] == answer.headers["x-request-id"] == "mine"
