from __future__ import annotations

import asyncio

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from ramify.browse.web.guard import HEADERS, Guard, hosts, new_token

TOKEN = "t0ken-of-a-test"
OURS = {"host": "127.0.0.1:8123"}


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"in: {scope['root_path']}")(scope, receive, send)


async def ask(
    path: str, headers: dict[str, str] | list[tuple[str, str]] = OURS, method: str = "GET"
) -> httpx.Response:
    guard = Guard(inner, TOKEN, hosts(8123))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1:8123") as client:
        return await client.request(method, path, headers=headers)


async def test_the_address_that_was_printed_is_let_in() -> None:
    answer = await ask(f"/{TOKEN}/api/runs")
    assert (answer.status_code, answer.text) == (200, f"in: /{TOKEN}")
    assert (await ask(f"/{TOKEN}/", {"host": "localhost:8123", "sec-fetch-site": "none"})).status_code == 200
    assert (await ask(f"/{TOKEN}/app.js", OURS | {"sec-fetch-site": "same-origin"})).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/runs", f"/{TOKEN}", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", f"//{TOKEN}/", "/é/"]
)
async def test_requests_without_the_token_are_not_found(path: str) -> None:
    answer = await ask(path)
    assert answer.status_code == 404
    assert TOKEN not in answer.text


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="/?#%"), min_size=1).filter(lambda text: text != TOKEN)
)
def test_similar_tokens_are_refused(word: str) -> None:
    scope = {"type": "http", "path": f"/{word}/", "method": "GET", "headers": [(b"host", b"localhost:8123")]}
    sent = []

    async def send(message: object) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    asyncio.run(Guard(inner, TOKEN, hosts(8123))(scope, receive, send))
    assert sent[0]["status"] == 404


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:8123", "127.0.0.1", "127.0.0.1:80", "localhost:8123.evil.test", ""]
)
async def test_a_name_that_is_not_ours_is_refused_even_with_the_token(host: str) -> None:
    """DNS rebinding: the browser takes evil.test for the same site, and says so in `Host`."""
    assert (await ask(f"/{TOKEN}/api/runs", {"host": host})).status_code == 421


async def test_two_names_are_refused() -> None:
    answer = await ask(f"/{TOKEN}/", [("host", "127.0.0.1:8123"), ("host", "evil.test")])
    assert answer.status_code == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_site_is_refused(site: str) -> None:
    """Another program's page on this machine is `same-site`: ports do not make a site."""
    assert (await ask(f"/{TOKEN}/api/runs", OURS | {"sec-fetch-site": site})).status_code == 403


async def test_a_link_from_elsewhere_may_lead_to_the_page_and_to_nothing_more() -> None:
    """As the file does that the browser is started with."""
    assert (await ask(f"/{TOKEN}/", OURS | {"sec-fetch-site": "cross-site"})).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_page_refuses_other_methods(method: str) -> None:
    assert (await ask(f"/{TOKEN}/api/runs", method=method)).status_code == 405


@pytest.mark.parametrize("path", [f"/{TOKEN}/", "/elsewhere"])
async def test_every_response_has_security_headers_and_no_cors(path: str) -> None:
    answer = await ask(path, OURS | {"origin": "http://evil.test"})
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_tokens_are_long_and_new() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) >= 32
