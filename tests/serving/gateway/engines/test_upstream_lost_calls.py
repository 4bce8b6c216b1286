"""Calls that an engine has lost while it serves others, by its own count; how much of its metrics is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.engines import upstream as upstream_module
from ramify.serving.gateway.engines.liveness import calls_held
from ramify.serving.gateway.engines.supervisor import following
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import ApiError
from tests.serving.stalled_loop import Ahead, never, turns


class Keeper:
    """Streams a token to each call and keeps it then; says what it `has`, where it tells."""

    def __init__(self, has: float | None) -> None:
        self.has = has
        self.worked = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            told = [] if self.has is None else ['vllm:num_requests_running{engine="0"} 0.0', self._waiting()]
            return httpx.Response(200, text="\n".join([f"vllm:generation_tokens_total {self.worked}", *told]))
        if request.url.path.endswith("/silent"):
            await never()
        sse = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=sse, content=self._token())

    def _waiting(self) -> str:
        by_reason = 'vllm:num_requests_waiting_by_reason{reason="capacity"} 90.0'
        return f'{by_reason}\nvllm:num_requests_waiting{{engine="0"}} {self.has}'

    async def _token(self) -> AsyncIterator[bytes]:
        yield b'data: {"choices": []}\n\n'
        await never()

    def upstream(self) -> Upstream:
        return Upstream("http://e", transport=httpx.MockTransport(self), hang_s=100, whole_s=600, queues=True)


async def silent_for(seconds: int, keeper: Keeper, upstream: Upstream, ahead: Ahead) -> None:
    """To one; others hear a word all the time."""
    for _ in range(seconds // 50):
        await ahead.ran(50)
        keeper.worked += 1
        upstream._speaks()
        await upstream.count(60)


async def begun(upstream: Upstream, stream: AsyncGenerator[Any, None]) -> asyncio.Task[Any]:
    await anext(stream)
    rest = asyncio.ensure_future(anext(stream))
    await turns()
    return rest


@pytest.mark.parametrize("has", [0, 1, None])
async def test_lost_stream_ends_while_others_are_served(has: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calls it has one; or it does not say how many it has."""
    ahead, keeper = Ahead(monkeypatch), Keeper(has)
    upstream = keeper.upstream()
    lost = await begun(upstream, upstream.stream("/stream", b"{}"))
    other = upstream.stream("/stream", b"{}")
    await anext(other)
    await silent_for(550, keeper, upstream, ahead)
    assert not lost.done()
    await silent_for(100, keeper, upstream, ahead)
    with pytest.raises(ApiError, match="serves other calls, and has lost this one") as raised:
        await asyncio.wait_for(lost, 60)
    assert (raised.value.status, raised.value.lost, upstream.suspect) == (504, True, False)
    await other.aclose()


async def test_paused_call_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, keeper = Ahead(monkeypatch), Keeper(1)
    upstream = keeper.upstream()
    paused = await begun(upstream, upstream.stream("/stream", b"{}"))
    await silent_for(3000, keeper, upstream, ahead)
    assert not paused.done()
    keeper.has = 0
    await silent_for(150, keeper, upstream, ahead)
    with pytest.raises(ApiError, match="has lost this one"):
        await asyncio.wait_for(paused, 60)


@pytest.mark.parametrize(("has", "ends"), [(0, True), (1, False), (None, False)])
async def test_queued_call_is_lost_only_by_the_engines_count(
    has: float | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, keeper = Ahead(monkeypatch), Keeper(has)
    upstream = keeper.upstream()
    calls = [asyncio.ensure_future(anext(upstream.stream("/silent", b"{}")))]
    await turns()
    await silent_for(700, keeper, upstream, ahead)
    assert [call.done() for call in calls] == [ends]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_queueing_engine_is_counted_while_it_serves() -> None:
    keeper = Keeper(1)
    upstream = keeper.upstream()
    async with following(upstream, 0.001):
        call = asyncio.create_task(upstream._within(never()))
        async with asyncio.timeout(60):
            while not upstream._tells:
                upstream._speaks()
                await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize(
    ("metrics", "has"),
    [
        (b"", None),
        (b"llamacpp:requests_processing 1", None),
        (b'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 2.0', 3),
        (b"# HELP ramify_running Calls\n# TYPE ramify_running gauge\nramify_running 2.0\nramify_waiting 1e+03", 1002),
        (b"vllm:num_requests_running 1.0.0", None),
        (b"vllm:num_requests_running NaN", None),
    ],
)
def test_calls_held_is_read_from_metrics(metrics: bytes, has: float | None) -> None:
    assert calls_held(metrics) == has


async def test_health_and_metrics_are_read_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is broken, or is no engine, may go on without end, faster than any limit of time."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"vllm:generation_tokens_total 1\n" * 1000

    monkeypatch.setattr(upstream_module, "_MOST_METRICS", 100_000)
    engine = Upstream("http://e", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=endless())))
    engine._worked = (b"before",)
    await asyncio.wait_for(engine.count(60), 60)
    assert not engine.heard_since(0.0) and engine._worked == (b"before",), "of what is cut nothing is believed"
    assert await asyncio.wait_for(engine.answers(60), 60) and await asyncio.wait_for(engine.lives(), 60)
    assert sent < 20


@pytest.mark.parametrize("status", [200, 400])
async def test_answers_and_errors_are_read_to_a_limit(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 1000

    for most in ("_MOST_ANSWER", "_MOST_ERROR"):
        monkeypatch.setattr(upstream_module, most, 100_000)
    engine = Upstream("http://e", transport=httpx.MockTransport(lambda _: httpx.Response(status, content=endless())))
    with pytest.raises(ApiError) as raised:
        await asyncio.wait_for(engine.get("/models"), 60)
    assert raised.value.status == {200: 502, 400: 400}[status]
