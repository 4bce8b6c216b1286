"""Engines of ours that die with calls inside: calls without a token wait for the next process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx
import pytest

from ramify.serving.errors import EngineFailed
from ramify.serving.gateway.engines import supervisor
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.supervisor import SupervisedEngine
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import Fault, ScriptedModel, ScriptedServer
from ramify.serving.types import ChatRequest

MESSAGES = [{"role": "user", "content": "hi"}]


class Life:
    """One life of an engine, on a port."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model, self.base_url, self.slots, self.alias = model, "", 2, "m"
        self._server = ScriptedServer(model)
        self._died = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        self.base_url = self._server.base_url
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(None, None, None)

    async def close(self) -> None:
        await self._server.__aexit__(None, None, None)

    async def kill(self) -> None:
        await self.close()
        self._died.set()

    async def ended(self) -> int:
        await self._died.wait()
        return -9


class Lives:
    """An engine that is started again, with the next of these models each time."""

    def __init__(self, models: Iterator[ScriptedModel]) -> None:
        self.all: list[Life] = []
        self.start = asyncio.Event()  # what the second life waits for
        self.start.set()
        self._models = models

    def make(self) -> Any:
        self.all.append(Life(next(self._models)))
        return self.all[-1] if len(self.all) == 1 else _Later(self.all[-1], self.start)


class _Later:
    def __init__(self, life: Life, start: asyncio.Event) -> None:
        self._life, self._start = life, start

    async def __aenter__(self) -> Life:
        await self._start.wait()
        return await self._life.__aenter__()

    async def __aexit__(self, *said: Any) -> None:
        await self._life.__aexit__(*said)


class _Stillborn:
    """A life that does not begin."""

    def __init__(self, fails: asyncio.Event) -> None:
        self._fails = fails

    async def __aenter__(self) -> Life:
        await self._fails.wait()
        raise EngineFailed("it did not start")

    async def __aexit__(self, *said: Any) -> None: ...


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF_S", 0.001)


@asynccontextmanager
async def served(lives: Lives, queue: int = 0, **more: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    async with SupervisedEngine(0, lives.make, EngineTraits(), queue=queue) as engine:
        app = create_gateway([engine.replica], **more)
        engine.changed = app.state.gateway.admission.decide
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
            yield client, app.state.gateway


def holds(inside: asyncio.Event) -> ScriptedModel:
    async def script(_: ChatRequest) -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    return ScriptedModel(script)


async def until(done: Any) -> None:
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
async def test_unanswered_calls_wait_for_the_restart(stream: bool) -> None:
    inside = asyncio.Event()
    lives = Lives(iter([holds(inside), ScriptedModel(lambda _: "done")]))
    async with served(lives) as (client, _):
        body = {"messages": MESSAGES, "stream": stream, "deadline": 3000}
        call = asyncio.create_task(client.post("/chat/completions", json=body))
        await inside.wait()
        await lives.all[0].kill()
        answer = await asyncio.wait_for(call, 60)
        seen = (await client.get("/ramify/requests")).json()["requests"]
        figures = (await client.get("http://gateway/metrics")).text
    assert answer.status_code == 200 and "done" in answer.text and "error" not in answer.text
    assert [(r["outcome"], r["met"], r["attempts"]) for r in seen] == [("done", True, 2)]
    assert "\nramify_retries_total 1.0" in figures


async def test_all_unanswered_calls_wait_even_if_they_check_at_once() -> None:
    lives = Lives(iter([holds(asyncio.Event()), ScriptedModel(lambda _: "done")]))
    async with served(lives, queue=62) as (client, gateway):
        body = {"messages": MESSAGES, "deadline": 3000}
        calls = [asyncio.create_task(client.post("/chat/completions", json=body)) for _ in range(64)]
        await until(lambda: len(lives.all[0].model.calls) == 64)
        await lives.all[0].kill()
        answers = await asyncio.wait_for(asyncio.gather(*calls), 60)
        assert (gateway.admission.running, gateway.admission.waiting) == (0, 0)
    assert [answer.status_code for answer in answers] == [200] * 64


async def test_server_with_a_dead_engine_is_ended_and_its_call_retried() -> None:
    """As vLLM's lives on for a while without its core, and answers every call with 500."""

    class Coreless(ScriptedModel):
        async def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Any:
            if path == "/health":
                method, path, body = "POST", "/v1/chat/completions", b'{"messages": []}'
            return await super().respond(method, path, headers, body)

    lives = Lives(iter([Coreless(lambda _: "", faults=[Fault.ERROR_500] * 99), ScriptedModel(lambda _: "done")]))
    async with served(lives) as (client, _):
        answer = await client.post("/chat/completions", json={"messages": MESSAGES})
    assert answer.status_code == 200 and "done" in answer.text


@pytest.mark.parametrize("fault", [Fault.ERROR_500, Fault.CUT, Fault.GARBAGE])
async def test_live_engine_that_fails_a_call_is_not_retried(fault: Fault) -> None:
    lives = Lives(iter([ScriptedModel(lambda _: "done", faults=[fault])]))
    async with served(lives) as (client, _):
        answer = await client.post("/chat/completions", json={"messages": MESSAGES})
        again = await client.post("/chat/completions", json={"messages": MESSAGES})
    assert (answer.status_code, again.status_code) == (502, 200)
    assert len(lives.all[0].model.calls) == 2


async def test_call_that_cannot_be_in_time_is_refused_during_the_restart() -> None:
    now, inside = [100.0], asyncio.Event()
    lives = Lives(iter([holds(inside), ScriptedModel(lambda _: "done")]))
    lives.start.clear()
    async with served(lives, clock=lambda: now[0]) as (client, gateway):
        late, patient = (
            asyncio.create_task(client.post("/chat/completions", json={"messages": MESSAGES, "deadline": left}))
            for left in (30, 3000)
        )
        await until(lambda: gateway.admission.running == 2)
        await inside.wait()
        await lives.all[0].kill()
        await until(lambda: gateway.admission.waiting == 2)
        now[0] += 60
        gateway.admission.decide()
        said = await asyncio.wait_for(late, 60)
        assert (said.status_code, said.json()["error"]["code"]) == (422, "deadline_infeasible")
        lives.start.set()
        ledger = (await asyncio.wait_for(patient, 60)).json()["ramify"]
        assert (ledger["queue_s"], ledger["prefill_s"], ledger["attempts"]) == (60.0, 0.0, 2), "nobody worked on it"


async def test_waiting_for_a_restart_delays_no_other_call() -> None:
    inside = asyncio.Event()
    lives = Lives(iter([holds(inside), ScriptedModel(lambda _: "done")]))
    lives.start.clear()
    other = ScriptedModel(lambda _: "by the other", faults=[Fault.ERROR_500])
    async with SupervisedEngine(0, lives.make, EngineTraits()) as engine:
        two = Replica(1, 1, Upstream("http://other", transport=other))
        two.running = 1  # so that the first call goes to the first engine
        app = create_gateway([engine.replica, two])
        engine.changed = app.state.gateway.admission.decide
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
            call = asyncio.create_task(client.post("/chat/completions", json={"messages": MESSAGES}))
            await inside.wait()
            two.running = 0
            await lives.all[0].kill()
            await until(lambda: other.calls and app.state.gateway.admission.waiting == 1)
            two.down_until = 0.0
            answer = await asyncio.wait_for(client.post("/chat/completions", json={"messages": MESSAGES}), 60)
            assert "by the other" in answer.text
            lives.start.set()
            assert "done" in (await asyncio.wait_for(call, 60)).text
    assert len(other.calls) == 2


@pytest.mark.parametrize("known", [True, False])
async def test_failed_restart_is_not_awaited(known: bool) -> None:
    """The call was in the other one, which is back. `known`: before the call was lost there."""
    inside, fails = asyncio.Event(), asyncio.Event()
    lives = Lives(iter([holds(inside), ScriptedModel(lambda _: "done")]))
    gone = Life(ScriptedModel(lambda _: "never"))
    makes: Iterator[Any] = iter([gone])
    async with (
        SupervisedEngine(0, lives.make, EngineTraits()) as back,
        SupervisedEngine(1, lambda: next(makes, _Stillborn(fails)), EngineTraits()) as away,
    ):
        app = create_gateway([back.replica, away.replica])
        back.changed = away.changed = app.state.gateway.admission.decide
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
            await gone.kill()
            await until(lambda: away.replica.upstream is None)
            if known:
                fails.set()
                await until(lambda: away.replica.false_starts)
            call = asyncio.create_task(client.post("/chat/completions", json={"messages": MESSAGES}))
            await inside.wait()
            await lives.all[0].kill()
            await until(lambda: back.replica.restarts)
            fails.set()
            assert "done" in (await asyncio.wait_for(call, 60)).text


async def test_live_failing_engine_is_not_retried_for_ever() -> None:
    model = ScriptedModel(lambda _: "done", faults=[Fault.ERROR_500] * 9)
    one, two = Replica(0, 1, Upstream("http://one", transport=model)), Replica(1, 1, None, false_starts=3)
    app = create_gateway([one, two])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        answer = await asyncio.wait_for(client.post("/chat/completions", json={"messages": MESSAGES}), 60)
    assert (answer.status_code, len(model.calls)) == (502, 1)


async def test_earlier_deaths_do_not_count_against_a_call() -> None:
    """Four at once: the call finds three of them gone, and may still wait for the first that is back."""
    inside, fleet = asyncio.Event(), [Lives(iter([holds(asyncio.Event()), holds(asyncio.Event())])) for _ in range(3)]
    first = Lives(iter([holds(inside), ScriptedModel(lambda _: "done")]))
    for one in fleet:
        one.start.clear()
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(SupervisedEngine(i, one.make, EngineTraits()))
            for i, one in enumerate((first, *fleet))
        ]
        for engine in engines[1:]:
            engine.replica.running = 2  # so that the call goes to the first
        app = create_gateway([engine.replica for engine in engines])
        for engine in engines:
            engine.changed = app.state.gateway.admission.decide
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
            call = asyncio.create_task(client.post("/chat/completions", json={"messages": MESSAGES}))
            await inside.wait()
            for engine in engines[1:]:
                engine.replica.running = 0
            for one in (*fleet, first):  # their servers, before anybody notices that their processes are gone
                await one.all[0].close()
            answer = await asyncio.wait_for(call, 60)
    assert "done" in answer.text


async def test_call_that_kills_every_engine_is_given_up() -> None:
    def deadly() -> ScriptedModel:
        async def script(request: ChatRequest) -> str:
            if request.messages[-1].content == "hi":
                kills.append(asyncio.create_task(lives.all[-1].kill()))
                await asyncio.Event().wait()
            return "well"

        return ScriptedModel(script)

    kills: list[asyncio.Task[None]] = []
    lives = Lives(iter([deadly() for _ in range(9)]))
    async with served(lives) as (client, _):
        answer = await asyncio.wait_for(client.post("/chat/completions", json={"messages": MESSAGES}), 60)
        assert (answer.status_code, len(kills)) == (502, 3)
        other = {"messages": [{"role": "user", "content": "another"}]}
        assert (await asyncio.wait_for(client.post("/chat/completions", json=other), 60)).status_code == 200
    await asyncio.gather(*kills)


async def test_call_can_be_cancelled_during_the_liveness_check() -> None:
    asked = asyncio.Event()

    async def ponders() -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    broken = ScriptedModel(lambda _: "", faults=[Fault.REFUSE])
    app = create_gateway([Replica(0, 1, Upstream("http://engine", transport=broken), comes_back=ponders)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        body = {"messages": MESSAGES, "vllm_xargs": {"fork_group": "g"}}
        call = asyncio.create_task(client.post("/chat/completions", json=body))
        await asked.wait()
        assert (await client.post("/ramify/cancel", json={"fork_group": "g"})).json() == {"cancelled": 1}
        assert (await call).status_code == 499
        health = (await client.get("http://gateway/health")).json()
    assert (health["running"], health["waiting"]) == (0, 0)


async def test_busy_engine_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramify.serving.gateway.engines import upstream

    monkeypatch.setattr(upstream, "_HEALTH_S", 0.01)

    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        return httpx.Response(200)

    async def broken(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone")

    over = Upstream("http://engine", transport=httpx.MockTransport(never))
    assert await over.lives()
    await over.aclose()
    assert not await over.lives()
    assert not await Upstream("http://engine", transport=httpx.MockTransport(broken)).lives()
