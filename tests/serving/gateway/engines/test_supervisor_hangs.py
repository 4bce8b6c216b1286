"""Engines that hang although their process runs: found by unanswered questions, and restarted."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.engines import supervisor
from ramify.serving.gateway.engines.replicas import EngineTraits
from ramify.serving.gateway.engines.supervisor import SupervisedEngine, following, until_hung
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest
from tests.serving.gateway.engines.test_supervisor_restarts import Life, Lives
from tests.serving.stalled_loop import Ahead, never, turns

MESSAGES = [{"role": "user", "content": "hi"}]
WELL, DEAD, SILENT = 200, 503, 0
BRIEF_S = 0.06  # without a sign of life


class Server:
    """Says of itself what the script says; of its model, what `token` does, and what `worked` counts."""

    def __init__(self, says: Iterator[int], token: Callable[[], Any] = lambda: None) -> None:
        self.asked = 0
        self.questions = 0
        self.looks = 0
        self.worked = 1
        self._says, self._token = says, token

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            self.looks += 1
            text = f'vllm:num_requests_running{{engine="0"}} {self.looks}\n'
            return httpx.Response(200, text=f'{text}vllm:generation_tokens_total{{engine="0"}} {self.worked}\n')
        if not request.url.path.endswith("/health"):
            self.questions += 1
            await self._token()
            return httpx.Response(200, json={"choices": []})
        self.asked += 1
        if (status := next(self._says)) == SILENT:
            await asyncio.Event().wait()
        return httpx.Response(status)

    def upstream(self, **more: Any) -> Upstream:
        return Upstream("http://engine", transport=httpx.MockTransport(self), **more)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF_S", 0.001)


@pytest.mark.parametrize("last", [SILENT, DEAD])
async def test_six_failed_health_checks_in_a_row_mean_hung(last: int) -> None:
    server = Server(chain([WELL, SILENT, DEAD, SILENT, SILENT, DEAD, WELL], repeat(last)))
    seen = await asyncio.wait_for(until_hung(server.upstream(), "m", BRIEF_S, 1), 60)
    assert "when asked 6 times" in seen and server.asked == 7 + 6
    assert server.questions == 0, "nobody had reason to ask its model"


async def test_server_without_a_health_page_is_well() -> None:
    server = Server(chain(repeat(404, 20), repeat(SILENT)))
    await asyncio.wait_for(until_hung(server.upstream(), "m", BRIEF_S, 1), 60)
    assert server.asked == 20 + 6


async def test_busy_server_counts_as_alive_by_its_answers_to_others() -> None:
    """Each time that it is asked a call hears a token meanwhile; then none does."""
    answers = iter([True] * 20)

    class Busy(Server):
        async def __call__(self, request: httpx.Request) -> httpx.Response:
            if next(answers, False):
                upstream._speaks()
            return await super().__call__(request)

    server = Busy(repeat(DEAD))
    upstream = server.upstream()
    await asyncio.wait_for(until_hung(upstream, "m", BRIEF_S, 1), 60)
    assert server.asked == 20 + 6


async def test_stuck_model_behind_a_live_server() -> None:
    server = Server(repeat(WELL), never)
    upstream = server.upstream()
    upstream.suspect = True
    seen = await asyncio.wait_for(until_hung(upstream, "m", BRIEF_S, 1), 60)
    assert "its model gave no token" in seen and server.questions == 1


async def test_slow_model_that_answers_is_not_hung() -> None:
    async def at_once() -> None: ...

    server = Server(chain(repeat(WELL, 9), repeat(SILENT)), at_once)
    upstream = server.upstream()
    upstream.suspect = True
    assert "its server" in await asyncio.wait_for(until_hung(upstream, "m", BRIEF_S, 1), 60)
    assert (server.questions, upstream.suspect) == (1, False)


async def test_model_working_on_a_whole_answer_gets_its_time() -> None:
    """With one slot the question waits behind it."""
    server = Server(chain(repeat(WELL, 9), repeat(SILENT)), never)
    upstream = server.upstream()
    upstream.suspect, upstream.working = True, 1
    found = asyncio.create_task(until_hung(upstream, "m", BRIEF_S, 1))
    for _ in range(5):
        await asyncio.sleep(BRIEF_S)
        assert not found.done()
    upstream._speaks()
    assert "its server" in await asyncio.wait_for(found, 60)
    assert (server.questions, upstream.suspect) == (1, False), "it spoke to somebody"


async def test_model_with_a_free_slot_does_not_get_that_time() -> None:
    server = Server(repeat(WELL), never)
    upstream = server.upstream()
    upstream.suspect, upstream.working = True, 1
    assert "its model" in await asyncio.wait_for(until_hung(upstream, "m", BRIEF_S, 2), 60)


async def test_whole_answer_gets_no_more_than_its_time() -> None:
    server = Server(repeat(WELL), never)
    upstream = server.upstream(hang_s=BRIEF_S, whole_s=3 * BRIEF_S)
    upstream.suspect, upstream.working = True, 1
    assert "its model" in await asyncio.wait_for(until_hung(upstream, "m", BRIEF_S, 1), 60)


async def test_model_reading_a_streams_prompt_may_be_silent() -> None:
    """On few cores, and in one that reads a prompt in one step, nobody else has a word meanwhile."""
    speak = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        await speak.wait()
        yield b'data: {"choices": []}\n\n'
        await asyncio.Event().wait()

    async def reads(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/stream"):
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=events())
        return await server(request)

    server = Server(chain(repeat(WELL, 9), repeat(SILENT)), never)
    upstream = Upstream("http://engine", transport=httpx.MockTransport(reads))
    stream = upstream.stream("/stream", b"{}")
    first = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    upstream.suspect = True
    found = asyncio.create_task(until_hung(upstream, "m", BRIEF_S, 4))
    for _ in range(5):
        await asyncio.sleep(BRIEF_S)
        assert not found.done() and upstream.reading == 1
    speak.set()
    await first
    assert upstream.reading == 0
    assert "its server" in await asyncio.wait_for(found, 60)
    assert (server.questions, upstream.suspect) == (1, False)
    await stream.aclose()
    assert upstream.reading == 0


async def test_stream_may_not_be_silent_longer_than_its_limit() -> None:
    upstream = Server(repeat(WELL), never).upstream(hang_s=3 * BRIEF_S)
    upstream.suspect, upstream.reading = True, 1
    assert "its model" in await asyncio.wait_for(until_hung(upstream, "m", BRIEF_S, 1), 60)


async def test_check_that_waits_for_growing_answers_is_no_hang() -> None:
    """For KV, as with long contexts in vLLM, where slots are left. Nobody has heard a token."""

    async def waits() -> None:
        await upstream.count(60)
        server.worked += 1
        await upstream.count(60)
        await never()

    server = Server(chain(repeat(WELL, 9), repeat(SILENT)), waits)
    upstream = server.upstream()
    upstream.suspect, upstream.working = True, 1
    assert "its server" in await asyncio.wait_for(until_hung(upstream, "m", BRIEF_S, 128), 60)
    assert (server.questions, upstream.suspect) == (1, False)


async def test_model_whose_counters_stop_is_hung() -> None:
    async def waits() -> None:
        await upstream.count(60)
        await upstream.count(60)
        await never()

    server = Server(repeat(WELL), waits)
    upstream = server.upstream()
    upstream.suspect, upstream.working = True, 1
    assert "its model" in await asyncio.wait_for(until_hung(upstream, "m", BRIEF_S, 128), 60)


async def test_work_before_the_silence_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, server = Ahead(monkeypatch), Server(repeat(WELL))
    upstream = server.upstream()
    await upstream.count(60)
    server.worked += 1
    await ahead.ran(1)
    upstream._speaks()
    silent_since = upstream.awake.time()
    await ahead.ran(1)
    await upstream.count(60)
    assert not upstream.heard_since(silent_since), "of that it had heard"
    server.worked += 1
    await upstream.count(60)
    assert upstream.heard_since(silent_since)


async def test_engine_without_counters_is_judged_by_its_answers() -> None:
    count = "vllm:generation_tokens_total 1"
    texts = iter(["vllm:num_requests_running 1", "", None, count, None, "", count])

    async def says(_: httpx.Request) -> httpx.Response:
        return httpx.Response(404) if (text := next(texts)) is None else httpx.Response(200, text=text)

    upstream = Upstream("http://engine", transport=httpx.MockTransport(says))
    begun = upstream.awake.time()
    for _ in range(7):
        await upstream.count(60)
    assert not upstream.heard_since(begun)


async def test_counters_are_read_only_while_calls_wait_in_silence() -> None:
    server = Server(repeat(WELL))
    upstream = server.upstream()
    async with following(upstream, 0.001):
        await asyncio.sleep(0.05)
        assert not server.looks, "nobody waits"
        begun = upstream.awake.time()
        call = asyncio.create_task(upstream._within(never()))
        async with asyncio.timeout(60):
            while not upstream.heard_since(begun):
                server.worked += 1
                await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert server.looks >= 2


async def test_stream_waits_in_a_queueing_engine_while_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead, server = Ahead(monkeypatch), Server(repeat(WELL))
    upstream = server.upstream(queues=True, hang_s=100)
    call = asyncio.create_task(upstream._within(never()))
    await upstream.count(60)
    for _ in range(5):
        await ahead.ran(60)
        server.worked += 1
        await upstream.count(60)
    assert not call.done()
    for _ in range(2):
        await ahead.ran(60)
        await upstream.count(60)
    with pytest.raises(ApiError, match="sent nothing"):
        await asyncio.wait_for(call, 60)


@pytest.mark.parametrize("queues", [False, True])
async def test_blocked_loop_time_is_not_silence_of_a_call(queues: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """LocalGateway runs in an application's loop: what came meanwhile has not been read."""
    ahead, came = Ahead(monkeypatch), asyncio.Event()

    async def token() -> str:
        await came.wait()
        return "token"

    upstream = Server(repeat(WELL)).upstream(queues=queues, hang_s=100)
    call = asyncio.create_task(upstream._within(token()))
    await turns()
    await ahead.held_up(5000)
    came.set()
    assert await asyncio.wait_for(call, 60) == "token"
    assert not upstream.suspect


async def test_blocked_loop_time_is_not_silence_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, came = Ahead(monkeypatch), asyncio.Event()

    async def well(_: httpx.Request) -> httpx.Response:
        await came.wait()
        return httpx.Response(200)

    upstream = Upstream("http://engine", transport=httpx.MockTransport(well))
    question = asyncio.create_task(upstream.answers(10))
    await turns()
    await ahead.held_up(5000)
    came.set()
    assert await asyncio.wait_for(question, 60)


async def test_blocked_loop_time_is_not_silence_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, came, asked = Ahead(monkeypatch), asyncio.Event(), asyncio.Event()

    async def token() -> None:
        asked.set()
        await came.wait()

    server = Server(chain([WELL], repeat(SILENT)), token)
    upstream = server.upstream()
    upstream.suspect = True
    found = asyncio.create_task(until_hung(upstream, "m", 60, 4))
    await asyncio.wait_for(asked.wait(), 60)
    await ahead.held_up(5000)
    came.set()
    await turns()
    assert not found.done() and not upstream.suspect
    found.cancel()
    await asyncio.gather(found, return_exceptions=True)


async def test_silence_to_a_call_triggers_a_check() -> None:
    upstream = Upstream("http://engine", transport=httpx.MockTransport(Server(repeat(SILENT))), hang_s=BRIEF_S)
    assert not upstream.suspect
    with pytest.raises(Exception, match="sent nothing"):
        await upstream.get("/health")
    assert upstream.suspect


@pytest.mark.parametrize("queues", [False, True])
async def test_calls_waiting_for_an_ended_engine_are_lost_at_once(queues: bool) -> None:
    """Also where it has just spoken to another, and what was with a slow client then and asks for more only now."""
    upstream = Server(repeat(WELL)).upstream(queues=queues, hang_s=3000.0)
    upstream._speaks()
    await upstream.aclose()
    with pytest.raises(ApiError, match="it was stopped"):
        await asyncio.wait_for(upstream._within(never()), 60)


async def test_engine_ends_at_the_moment_of_a_calls_timeout() -> None:
    upstream = Server(repeat(WELL)).upstream(hang_s=3000.0)
    call = asyncio.create_task(upstream._within(never()))
    await asyncio.sleep(0)
    (limit,) = upstream._waits
    limit.reschedule(asyncio.get_running_loop().time())
    await asyncio.sleep(0)
    assert limit.expired() and not call.done()
    await upstream.aclose()
    with pytest.raises(ApiError, match="it was stopped"):
        await call


@pytest.mark.parametrize(("want", "dead"), [(errno.EMFILE, False), (errno.ENFILE, False), (errno.ECONNREFUSED, True)])
async def test_lack_of_descriptors_does_not_make_an_engine_dead(want: int, dead: bool) -> None:
    """A gateway with thousands of streams would end all its engines, and every stream with them."""

    def starved(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no connection") from OSError(want, os.strerror(want))

    upstream = Upstream("http://engine", transport=httpx.MockTransport(starved))
    assert [await upstream.answers(60), await upstream.lives()] == [not dead, not dead]


class Freezes(ScriptedModel):
    """Stopped, as by SIGSTOP, with its first call inside: it takes connections and says nothing, of itself either."""

    async def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Any:
        if self.calls:
            await asyncio.Event().wait()
        return await super().respond(method, path, headers, body)


async def test_call_in_a_hung_engine_is_done_after_the_restart() -> None:
    async def script(_: ChatRequest) -> str:
        await asyncio.Event().wait()
        return "never"

    lives = Lives(iter([Freezes(script), ScriptedModel(lambda _: "done")]))
    async with SupervisedEngine(0, lives.make, EngineTraits(), restart_s=1.2) as engine:
        app = create_gateway([engine.replica])
        engine.changed = app.state.gateway.admission.decide
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
            call = client.post("/chat/completions", json={"messages": MESSAGES, "deadline": 3000})
            answer = await asyncio.wait_for(call, 60)
            seen = (await client.get("/ramify/requests")).json()["requests"]
    assert answer.status_code == 200 and "done" in answer.text
    assert [(r["outcome"], r["met"], r["attempts"]) for r in seen] == [("done", True, 2)]
    assert engine.replica.restarts == 1 and isinstance(lives.all[0], Life)
