"""The access policy of our HTTP servers, by itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramify.serving.engine.vllm_process import KEY_VARIABLE, VllmGuard
from ramify.serving.http_guard import (
    AccessPolicy,
    Guard,
    Headers,
    Keys,
    authority,
    stays_here,
    web_origin,
    with_target_host,
)
from ramify.serving.testing import ScriptedServer

LOOPBACK = AccessPolicy(names=frozenset({"box.lan"}), advice="--allow-host NAME")
KEYED = AccessPolicy(any_address=True, keys=Keys(["k3y", "other"]))


def status(policy: AccessPolicy, headers: Headers, method: str = "GET", version: str = "1.1") -> int | None:
    refusal = policy.refusal(method, headers, version)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8080", "localhost.", "localhost.:80", "localhost:", "127.0.0.1:1", "127.8.9.1"),
        *("[::1]", "[::1]:8080", "[0:0::1]:8080", "[::ffff:127.0.0.1]", "box.lan:99", "BOX.LAN.", " localhost "),
    ],
)
def test_own_host_names_are_answered(host: str) -> None:
    assert status(LOOPBACK, [(b"Host", host.encode())]) is None


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        *(
            (host, 421)
            for host in ("evil.test", "localhost.evil.test:8080", "10.0.0.7", "0.0.0.0", "[::]", "x", "127.1")
        ),
        *((host, 421) for host in ("host.docker.internal:8080", "box.lan.evil.test", "notlocalhost", "a.localhost")),
        *((host, 400) for host in ("", ":80", "localhost:x", "localhost:99999", "[::1", "::1", "a b", "localhost/x")),
        *(
            (host, 400)
            for host in ("me@localhost", "localhost,evil.test", "[::1%25lo]", "localhost\\evil", "\xe9.test")
        ),
    ],
)
def test_other_host_names_are_refused(host: str, refused: int) -> None:
    """DNS rebinding: a page's own name leads to this machine, and its browser says that name."""
    assert status(LOOPBACK, [(b"host", host.encode("latin-1"))]) == refused


def test_refusal_says_how_to_allow_a_host_name() -> None:
    refusal = LOOPBACK.refusal("GET", [(b"host", b"Host.Docker.Internal:8080")])
    assert refusal is not None and "--allow-host host.docker.internal" in refusal.message
    said = json.loads(refusal.body())["error"]
    assert (said["type"], said["param"], said["code"]) == ("invalid_request_error", "host", "host_not_allowed")


def test_exactly_one_host_header_is_required() -> None:
    assert status(LOOPBACK, [(b"host", b"localhost"), (b"Host", b"localhost")]) == 400
    assert status(LOOPBACK, []) == 400
    assert status(LOOPBACK, [], version="1.0") is None, "it has no Host, and no browser speaks it"
    assert status(LOOPBACK, [(b"x-forwarded-host", b"localhost"), (b"host", b"evil.test")]) == 421
    assert status(LOOPBACK, [(b"forwarded", b"host=localhost"), (b"host", b"evil.test")]) == 421
    assert status(LOOPBACK, [(b"x-forwarded-host", b"evil.test"), (b"host", b"localhost")]) is None


@pytest.mark.parametrize(("host", "refused"), [("10.0.0.7:80", None), ("[fd00::1]", None), ("evil.test", 421)])
def test_beyond_this_machine_any_ip_address_is_accepted(host: str, refused: int | None) -> None:
    """No DNS server can point an address elsewhere."""
    assert status(AccessPolicy(any_address=True), [(b"host", host.encode())]) == refused


@pytest.mark.parametrize(
    ("authorization", "refused"),
    [(None, 401), (b"Bearer wrong", 401), (b"Bearer ", 401), (b"k3y", 401), (b"bearer  k3y", None)],
)
def test_beyond_this_machine_a_key_replaces_the_host_name(authorization: bytes | None, refused: int | None) -> None:
    shown = [] if authorization is None else [(b"authorization", authorization)]
    assert status(KEYED, [(b"host", b"llm.example.org"), *shown]) == refused
    on_loopback = AccessPolicy(keys=KEYED.keys)
    assert status(on_loopback, [(b"host", b"llm.example.org"), *shown]) == 421, "pages of this machine may know one"


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"", b"nonsense", b"Same-Origin, none"])
def test_cross_site_requests_are_refused(site: bytes) -> None:
    assert status(LOOPBACK, [(b"host", b"localhost"), (b"sec-fetch-site", site)]) == 403
    assert status(LOOPBACK, [(b"host", b"localhost"), (b"sec-fetch-site", b"none"), (b"sec-fetch-site", site)]) == 403


@pytest.mark.parametrize("site", [b"same-origin", b"none"])
def test_own_pages_are_answered(site: bytes) -> None:
    own = [(b"host", b"localhost:8080"), (b"sec-fetch-site", site), (b"origin", b"http://localhost:8080")]
    assert status(LOOPBACK, own) is None


@pytest.mark.parametrize(
    ("host", "origin", "refused"),
    [
        ("localhost", "http://localhost", None),
        ("localhost:80", "http://LOCALHOST", None),
        ("[::1]:8080", "http://[::1]:8080", None),
        ("box.lan", "https://box.lan", None),
        ("localhost:8080", "http://localhost:3000", 403),
        ("localhost:8080", "http://127.0.0.1:8080", 403),
        ("localhost:8080", "http://localhost", 403),
        ("localhost", "null", 403),
        ("localhost", "", 403),
        ("localhost", "file://", 403),
        ("localhost", "chrome-extension://localhost", 403),
        ("localhost", "http://localhost.evil.test", 403),
        ("localhost", "http://localhost@evil.test", 403),
        ("localhost", "http://localhost/", 403),
        ("localhost", "http://localhost http://evil.test", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_origin_must_be_the_servers_own(host: str, origin: str, refused: int | None, method: str) -> None:
    headers = [(b"host", host.encode()), (b"origin", origin.encode()), (b"content-type", b"application/json")]
    assert status(LOOPBACK, headers, method) == refused
    assert status(LOOPBACK, [*headers, (b"origin", origin.encode())], method) == 403


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ([], 415),
        ([b"text/plain"], 415),
        ([b"application/x-www-form-urlencoded"], 415),
        ([b"multipart/form-data; boundary=application/json"], 415),
        ([b"text/plain; application/json"], 415),
        ([b"application/jsonp"], 415),
        ([b"application/json, text/plain"], 415),
        ([b"application/json", b"text/plain"], 415),
        ([b"application/json"], None),
        ([b"Application/JSON ; charset=utf-8"], None),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "post", "BREW"])
def test_changing_requests_must_be_json(said: list[bytes], refused: int | None, method: str) -> None:
    """A form and a `fetch` of text reach another site without asking it first; JSON does not."""
    headers = [(b"host", b"localhost"), *((b"content-type", one) for one in said)]
    assert status(LOOPBACK, headers, method) == refused
    assert status(LOOPBACK, headers, "GET") is None


NAMES = st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,30}", fullmatch=True)


@given(NAMES, st.none() | st.integers(0, 65535))
@example("localhost", 80)
def test_authority_splits_host_and_port(name: str, port: int | None) -> None:
    text = name.upper() + ("" if port is None else f":{port}")
    assert authority(text) == (name.removesuffix("."), port)


@given(st.text(max_size=40) | NAMES)
def test_no_header_breaks_the_check(text: str) -> None:
    value = text.encode("utf-8", "surrogatepass")
    for name in (b"host", b"origin", b"content-type", b"sec-fetch-site", b"authorization"):
        LOOPBACK.refusal("POST", [(b"host", b"localhost"), (name, value)])
        KEYED.refusal("POST", [(name, value)])


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"/health", b"localhost"),
        (b"*", b"localhost"),
        (b"http://evil.test/health", b"evil.test"),
        (b"HTTP://evil.test:80?x", b"evil.test:80"),
        (b"http://localhost@evil.test/", b"localhost@evil.test"),
    ],
)
def test_host_of_an_absolute_target_replaces_the_header(target: bytes, host: bytes) -> None:
    headers = [(b"host", b"localhost"), (b"accept", b"*/*")]
    with_target_host(target, headers)
    assert dict(headers) == {b"host": host, b"accept": b"*/*"}
    twice = [(b"host", b"localhost")] * 2
    with_target_host(target, twice)
    assert len(twice) == 2


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.1", True), ("::ffff:127.0.0.1", True)]
    + [(host, False) for host in ("", "0.0.0.0", "::", "0", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1")],
)
def test_which_hosts_stay_on_this_machine(host: str, here: bool) -> None:
    assert stays_here(host) is here


def asked(guard: Guard, headers: Headers, path: str = "/", kind: str = "http") -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": f"{kind}.connect"}

    method = {"method": "GET"} if kind == "http" else {}
    asyncio.run(guard({"type": kind, "path": path, "headers": headers, **method}, receive, send))
    return sent


async def inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": f"{scope['type']}.response.start" if scope["type"] == "http" else "websocket.accept"})


def test_websockets_are_checked_too() -> None:
    guard, host = Guard(inside, LOOPBACK), (b"host", b"localhost")
    assert asked(guard, [host], kind="websocket") == [{"type": "websocket.accept"}]
    for bad in ([host, (b"origin", b"http://evil.test")], [(b"host", b"evil.test")]):
        assert asked(guard, bad, kind="websocket") == [{"type": "websocket.close", "code": 1008}]


def test_every_answer_forbids_cross_origin_use() -> None:
    for headers in ([(b"host", b"localhost")], [(b"host", b"evil.test")]):
        names = dict(asked(Guard(inside, LOOPBACK), headers)[0]["headers"])
        assert names[b"cross-origin-resource-policy"] == b"same-origin"
        assert names[b"x-content-type-options"] == b"nosniff"
        assert not [name for name in names if name.startswith(b"access-control")]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/metrics", "/tokenize", "/invocations", "/Health", "/health/"]
)
def test_vllm_server_answers_only_its_gateway(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "k3y")
    guard, host, key = VllmGuard(inside), (b"host", b"127.0.0.1:9"), (b"authorization", b"Bearer k3y")
    assert asked(guard, [host], path)[0]["status"] == 401
    assert "status" not in asked(guard, [host, key], path)[0], "it went on to its route"
    assert asked(guard, [(b"host", b"evil.test"), key], path)[0]["status"] == 421
    assert "status" not in asked(guard, [host], "/health")[0]
    assert asked(guard, [(b"host", b"evil.test")], "/health")[0]["status"] == 421
    monkeypatch.delenv(KEY_VARIABLE)
    assert "status" not in asked(VllmGuard(inside), [host], path)[0]
    assert asked(VllmGuard(inside), [host, (b"origin", b"http://evil.test")], path)[0]["status"] == 403


async def test_scripted_server_refuses_pages_too() -> None:
    async with ScriptedServer(lambda _: "never") as server:
        port = int(server.base_url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"messages": [{"role": "user", "content": "hi"}]}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        assert (await reader.readline()).startswith(b"HTTP/1.1 415 ")
        assert not server.model.calls
        writer.close()


PAGE = b"https://app.example"
NAMED = AccessPolicy(origins=frozenset({PAGE.decode()}))


async def _answered(policy: AccessPolicy, method: str, headers: Headers) -> tuple[int, dict[str, str]]:
    """The status and headers of an answer; the application behind the guard says 200."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/", "headers": headers, "http_version": "1.1"}
    await Guard(app, policy)(scope, send, send)  # type: ignore[arg-type]
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


async def test_pages_of_named_origins_may_call() -> None:
    page = [(b"host", b"localhost:1"), (b"origin", PAGE), (b"sec-fetch-site", b"cross-site")]
    asks = [(b"access-control-request-headers", b"content-type,authorization")]
    status_, headers = await _answered(NAMED, "OPTIONS", [*page, *asks])
    assert (status_, headers["access-control-allow-origin"]) == (204, PAGE.decode())
    assert headers["access-control-allow-headers"] == "content-type,authorization"
    json_ = [(b"content-type", b"application/json")]
    status_, headers = await _answered(NAMED, "POST", [*page, *json_])
    assert (status_, headers["access-control-allow-origin"], headers["vary"]) == (200, PAGE.decode(), "origin")


@pytest.mark.parametrize("origin", [b"https://app.example.evil", b"http://app.example", b"null", b"https://other"])
async def test_other_origins_may_not(origin: bytes) -> None:
    page = [(b"host", b"localhost:1"), (b"origin", origin), (b"sec-fetch-site", b"cross-site")]
    for method in ("OPTIONS", "GET"):
        refused, headers = await _answered(NAMED, method, page)
        assert refused == 403 and not any(name.startswith("access-control") for name in headers)


async def test_a_named_origin_does_not_replace_the_right_host() -> None:
    rebound, _ = await _answered(NAMED, "GET", [(b"host", b"evil.example"), (b"origin", PAGE)])
    assert rebound == 421


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("HTTPS://App.example/", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_origins_are_compared_as_browsers_send_them(text: str, origin: str) -> None:
    assert web_origin(text) == origin


@pytest.mark.parametrize("text", ["app.example", "*", "null", "ftp://app.example", "https://", "https://a/b"])
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        web_origin(text)
