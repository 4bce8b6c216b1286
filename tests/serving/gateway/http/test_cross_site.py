"""The running gateway: pages of other sites get nothing from it, and real clients get everything."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ramify.serving.engine.contract import EngineSpec
from ramify.serving.errors import EngineFailed, Exposed
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.testing import ScriptedModel, ScriptedServer

PATHS = (
    "/health",
    "/ready",
    "/metrics",
    "/v1/models",
    "/v1/ramify/requests",
    "/v1/ramify/history?app_id=a",
    "/nothing",
)
POSTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/ramify/cancel",
    "/v1/ramify/prefix",
    "/nothing",
)
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def gateway(home: Path, **more: Any) -> AsyncIterator[tuple[ScriptedModel, int]]:
    """One on a real port before a scripted engine."""
    model = ScriptedModel(lambda _: "answered")
    async with ScriptedServer(model) as engine:
        settings = GatewaySettings(home=home, engines=(EngineSpec.parse(engine.base_url),), **more)
        async with LocalGateway(settings) as one:
            yield model, int(one.base_url.rsplit(":", 1)[1].removesuffix("/v1"))


async def said(port: int, head: str, body: bytes = b"", at: str = "127.0.0.1") -> tuple[int, dict[str, str], str]:
    """What a request of these very bytes gets."""
    reader, writer = await asyncio.open_connection(at, port)
    if body:
        head += f"content-length: {len(body)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode("latin-1") + body)
    answer = (await asyncio.wait_for(reader.read(), 30)).decode()
    writer.close()
    top, _, text = answer.partition("\r\n\r\n")
    first, *lines = top.split("\r\n")
    return int(first.split()[1]), {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}, text


async def test_dns_rebinding_page_reads_nothing(tmp_path: Path) -> None:
    """DNS rebinding: its browser takes the gateway for the page's own site."""
    async with gateway(tmp_path) as (model, port):
        for path in PATHS:
            head = f"GET {path} HTTP/1.1\r\nhost: evil.test:{port}\r\nsec-fetch-site: same-origin\r\n"
            status, headers, text = await said(port, head)
            error = json.loads(text)["error"]
            assert (status, error["code"], error["param"]) == (421, "host_not_allowed", "host"), path
            assert "--allow-host evil.test" in error["message"] and headers["content-type"] == "application/json"
            assert headers["x-request-id"].startswith("req_")
        for path in POSTS:
            head = f"POST {path} HTTP/1.1\r\nhost: evil.test:{port}\r\norigin: http://evil.test:{port}\r\n"
            head += "content-type: application/json\r\n"
            assert (await said(port, head, json.dumps(ASK).encode()))[0] == 421, path
        assert not model.calls


@pytest.mark.parametrize(
    "headers",
    [
        "content-type: text/plain\r\norigin: https://evil.test\r\nsec-fetch-site: cross-site\r\n",
        "content-type: text/plain\r\norigin: https://evil.test\r\n",
        "content-type: text/plain;charset=UTF-8\r\n",
        "content-type: application/x-www-form-urlencoded\r\norigin: null\r\n",
        "content-type: multipart/form-data; boundary=x\r\n",
        "",
        "content-type: application/json\r\norigin: https://evil.test\r\n",
        "content-type: application/json\r\nsec-fetch-site: same-site\r\n",
        "content-type: application/json\r\norigin: http://localhost:1\r\n",
        "content-type: application/json\r\norigin: null\r\n",
    ],
)
async def test_cross_site_page_uses_nothing(tmp_path: Path, headers: str) -> None:
    """A form, an image, a `fetch` without CORS: browsers send these, and only hide the answer."""
    async with gateway(tmp_path) as (model, port):
        for path in POSTS:
            status, answered, text = await said(
                port, f"POST {path} HTTP/1.1\r\nhost: localhost:{port}\r\n{headers}", json.dumps(ASK).encode()
            )
            assert (
                status in (403, 415, 404 if path == "/nothing" else 415)
                and json.loads(text)["error"]["type"] == "invalid_request_error"
            ), path
            assert not [name for name in answered if name.startswith("access-control")]
        assert not model.calls


async def test_cross_site_get_and_preflight_are_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        for path in PATHS:
            for site in ("sec-fetch-site: cross-site", "origin: http://evil.test", "sec-fetch-site: same-site"):
                assert (await said(port, f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{site}\r\n"))[0] == 403, path
        wish = "origin: http://evil.test\r\naccess-control-request-method: POST\r\n"
        status, headers, _ = await said(port, f"OPTIONS {POSTS[0]} HTTP/1.1\r\nhost: localhost\r\n{wish}")
        assert status == 403 and not [name for name in headers if name.startswith("access-control")]
        upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\norigin: http://evil.test\r\n"
        assert (await said(port, f"GET /health HTTP/1.1\r\nhost: localhost\r\n{upgrade}"))[0] == 403


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health HTTP/1.1\r\nhost: localhost\r\n", 200),
        ("GET /health HTTP/1.1\r\nHOST: LocalHost.:9\r\n", 200),
        ("GET /health HTTP/1.1\r\nhost: [::1]:9\r\n", 200),
        ("GET /health HTTP/1.0\r\n", 200),
        ("GET /health HTTP/1.1\r\nhost: localhost\r\naccept-language: *\r\nsec-fetch-mode: cors\r\n", 200),  # Node
        ("HEAD /health HTTP/1.1\r\nhost: 127.0.0.1\r\n", 200),
        ("GET http://localhost:9/health HTTP/1.1\r\nhost: localhost:9\r\n", 200),
        ("GET http://localhost:9/health HTTP/1.1\r\nhost: proxy.test\r\n", 200),
        ("GET http://evil.test/health HTTP/1.1\r\nhost: localhost\r\n", 421),
        ("GET http://localhost@evil.test/health HTTP/1.1\r\nhost: localhost\r\n", 400),
        ("GET /health HTTP/1.1\r\n", 400),
        ("GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n", 400),
        ("GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.test\r\n", 400),
        ("GET /health HTTP/1.1\r\nhost: evil.test\r\nx-forwarded-host: localhost\r\n", 421),
        ("GET /health HTTP/1.0\r\nhost: evil.test\r\n", 421),
        (
            "GET /health HTTP/1.1\r\nhost: localhost\r\nx-forwarded-host: evil.test\r\nx-forwarded-proto: https\r\n",
            200,
        ),
        ("DELETE /v1/models HTTP/1.1\r\nhost: localhost\r\n", 405),
        ("PUT /v1/models HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n", 405),
        ("PATCH /v1/models HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n", 405),
    ],
)
async def test_request_heads_of_all_kinds(tmp_path: Path, head: str, status: int) -> None:
    async with gateway(tmp_path) as (_, port):
        assert (await said(port, head))[0] == status


async def test_other_host_name_is_allowed_by_an_option(tmp_path: Path) -> None:
    """As from a container."""
    async with gateway(tmp_path, allow_hosts=("host.docker.internal",)) as (_, port):
        assert (await said(port, "GET /health HTTP/1.1\r\nhost: host.docker.internal:8080\r\n"))[0] == 200
        assert (await said(port, "GET /health HTTP/1.1\r\nhost: docker.internal\r\n"))[0] == 421


async def test_official_client_and_httpx_are_answered(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        for host in ("localhost", "127.0.0.1"):
            url = f"http://{host}:{port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                assert (await client.models.list()).data
                chat = await client.chat.completions.create(model="m", messages=ASK["messages"])
                assert chat.choices[0].message.content == "answered"
                stream = await client.chat.completions.create(model="m", messages=ASK["messages"], stream=True)
                assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "answered"
                assert (await client.responses.create(model="m", input="hi")).output_text == "answered"
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.post(f"{url}/completions", json={"prompt": "hi"})).status_code == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_command_of_the_documentation_works(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        url = f"http://localhost:{port}/v1/chat/completions"
        for words, status in ((["-H", "content-type: application/json"], "200"), ([], "415")):
            line = ["curl", "-sS", "--noproxy", "*", "-w", "%{http_code}", *words, "-d", json.dumps(ASK), url]
            done = await asyncio.to_thread(
                subprocess.run, line, capture_output=True, text=True, check=True, timeout=60
            )
            assert done.stdout[-3:] == status
        assert "-H 'content-type: application/json'" in json.loads(done.stdout[:-3])["error"]["message"]


async def test_ipv4_and_ipv6_addresses_both_work(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    async with gateway(tmp_path, host="::1") as (_, port):
        for host, status in ((f"[::1]:{port}", 200), ("[::1]", 200), ("ip6.evil.test", 421), ("[::2]", 421)):
            assert (await said(port, f"GET /health HTTP/1.1\r\nhost: {host}\r\n", at="::1"))[0] == status


async def test_every_ipv6_address_is_every_ipv4_address_too(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no sockets for both here")
    async with gateway(tmp_path, host="::", insecure_no_keys=True) as (_, port):
        for at in ("127.0.0.1", "::1"):
            assert (await said(port, f"GET /health HTTP/1.1\r\nhost: localhost:{port}\r\n", at=at))[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
async def test_does_not_listen_beyond_this_machine_without_keys(tmp_path: Path, host: str) -> None:
    with pytest.raises(Exposed, match=r"`api_keys`.*`insecure_no_keys`"):
        async with gateway(tmp_path, host=host):
            pytest.fail("anybody in the network could use the engine")


async def test_unknown_host_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"cannot listen on nowhere\.invalid"):
        async with gateway(tmp_path, host="nowhere.invalid"):
            pytest.fail("there is no such host")


async def test_insecure_gateway_still_refuses_other_host_names(tmp_path: Path) -> None:
    async with gateway(tmp_path, host="0.0.0.0", insecure_no_keys=True) as (_, port):
        for host, status in (("10.1.2.3", 200), ("localhost", 200), ("0.0.0.0", 200), ("evil.test", 421)):
            assert (await said(port, f"GET /health HTTP/1.1\r\nhost: {host}:{port}\r\n"))[0] == status


async def test_valid_key_replaces_the_host_name_beyond_this_machine(tmp_path: Path) -> None:
    async with gateway(tmp_path, host="0.0.0.0", api_keys=("k3y",)) as (_, port):
        head = "GET /v1/models HTTP/1.1\r\nhost: llm.example.org\r\n"
        assert (await said(port, f"{head}authorization: Bearer k3y\r\n"))[0] == 200
        status, _, text = await said(port, f"{head}authorization: Bearer wrong\r\n")
        assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")
        assert (await said(port, f"{head}authorization: Bearer k3y\r\norigin: http://evil.test\r\n"))[0] == 403
        assert (await said(port, "GET /health HTTP/1.1\r\nhost: 10.0.0.1\r\n"))[0] == 200
