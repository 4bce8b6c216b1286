"""Prefix hints: read in free slots only, out of the way of every call, and not counted as calls."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from ramify.serving.client import LLMClient
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.gateway import Gateway
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import Call, Fault, ScriptedModel, ScriptedServer, _json
from ramify.serving.types import ChatRequest, Message

SYSTEM = {"role": "system", "content": "be brief " * 200}
CALL = {"messages": [SYSTEM, {"role": "user", "content": "hi"}]}
HINT = {"model": "default", "messages": [SYSTEM]}


class Held:
    """A model that answers a hint when it is let, and a call at once."""

    def __init__(self, **model: Any) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.model = ScriptedModel(self.script, **model)

    async def script(self, request: ChatRequest) -> str:
        if request.max_tokens == 1:
            self.begun.set()
            await self.go.wait()
        return "said"


def app_of(*models: ScriptedModel, slots: int = 1, keeps: bool | None = True) -> Starlette:
    traits = EngineTraits(keeps_prefixes=keeps)
    return create_gateway(
        [
            Replica(index, slots, Upstream(f"http://engine{index}", transport=model, hang_s=60), traits, alias="tiny")
            for index, model in enumerate(models)
        ]
    )


def client_of(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1")


async def counted(client: httpx.AsyncClient) -> dict[str, float]:
    lines = (await client.get("http://gateway/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith("ramify_prefix_hints_total")]
    return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in found}


async def test_idle_engine_reads_a_hint_and_no_call_is_counted() -> None:
    model = ScriptedModel(lambda _: "x")
    app = app_of(model)
    async with client_of(app) as client:
        answer = await client.post("/ramify/prefix", json={**HINT, "tools": []})
        assert (answer.status_code, answer.json()) == (200, {"sent": True, "read": True, "why": None})
        (asked,) = model.calls
        assert asked.body["max_tokens"] == 1 and asked.body["model"] == "tiny"
        assert [m.role for m in asked.request.messages] == ["system", "user"]  # some templates refuse less
        assert asked.request.messages[0].content == SYSTEM["content"]
        assert (await client.get("/ramify/requests")).json()["requests"] == []
        text = (await client.get("http://gateway/metrics")).text
        assert "ramify_requests_total{" not in text and "ramify_slo_total{" not in text
        assert await counted(client) == {"read": 1}


async def test_call_that_needs_the_slot_ends_a_hint() -> None:
    held = Held(slots=1)
    async with client_of(app_of(held.model)) as client:
        hint = asyncio.create_task(client.post("/ramify/prefix", json=HINT))
        await held.begun.wait()
        async with asyncio.timeout(60):
            answer = await client.post("/chat/completions", json=CALL)
        assert answer.json()["choices"][0]["message"]["content"] == "said"
        assert (await hint).json() == {"sent": True, "read": False, "why": "a call needed its slot"}
        assert await counted(client) == {"called_off": 1}


async def test_long_hint_is_read_in_pieces_and_a_call_waits_for_one() -> None:
    long = {"role": "system", "content": "".join(f"rule {i}. " for i in range(700))}
    talk = [long, {"role": "user", "content": "x" * 3000}, {"role": "assistant", "content": "ok"}, SYSTEM]
    second, go = asyncio.Event(), asyncio.Event()

    async def script(request: ChatRequest) -> str:
        if request.max_tokens == 1 and len(model.calls) == 2:
            second.set()
            await go.wait()
        return "said"

    model = ScriptedModel(script)
    async with client_of(app_of(model)) as client:
        hint = asyncio.create_task(client.post("/ramify/prefix", json={**HINT, "messages": [long]}))
        await asyncio.wait_for(second.wait(), 60)
        assert (await client.post("/chat/completions", json=CALL)).status_code == 200
        assert (await hint).json()["why"] == "a call needed its slot"
        assert len(model.calls) == 3, "nothing more of it is sent"
        model.calls.clear()
        go.set()
        assert (await client.post("/ramify/prefix", json={**HINT, "messages": talk})).json()["read"] is True
    asked = [call.body["messages"] for call in model.calls]
    texts = ["".join(m["content"] or "" for m in messages) for messages in asked]  # type: ignore[attr-defined]
    assert all(later.startswith(former) for former, later in pairwise(texts))
    assert max(len(b) - len(a) for a, b in zip(["", *texts], texts, strict=False)) <= 2048
    assert asked[-1][: len(talk)] == talk  # type: ignore[index]


async def test_engine_that_refuses_a_piece_may_read_the_whole() -> None:
    class Strict(ScriptedModel):
        async def respond(self, method: str, path: str, headers: Any, body: bytes) -> Any:
            if method == "POST" and b"the end" not in body:
                self.calls.append(Call(ChatRequest(()), headers, {}))
                return _json(400, {"error": {"message": "a conversation ends with the end"}})
            return await super().respond(method, path, headers, body)

    model = Strict(lambda _: "x")
    async with client_of(app_of(model)) as client:
        long = {"role": "system", "content": "rule. " * 2000 + "the end"}
        assert (await client.post("/ramify/prefix", json={**HINT, "messages": [long]})).json()["read"] is True
    assert len(model.calls) == 2


async def test_hint_continues_beside_a_call_if_slots_suffice() -> None:
    held = Held()
    async with client_of(app_of(held.model, slots=2)) as client:
        hint = asyncio.create_task(client.post("/ramify/prefix", json=HINT))
        await held.begun.wait()
        assert (await client.post("/chat/completions", json=CALL)).status_code == 200
        assert not hint.done()
        held.go.set()
        assert (await hint).json()["read"] is True


async def test_no_hint_is_sent_while_all_slots_are_taken() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def script(_: ChatRequest) -> str:
        begun.set()
        await go.wait()
        return "said"

    model = ScriptedModel(script)
    async with client_of(app_of(model)) as client:
        call = asyncio.create_task(client.post("/chat/completions", json=CALL))
        await begun.wait()
        answer = await client.post("/ramify/prefix", json=HINT)
        assert (answer.status_code, answer.json()) == (202, {"sent": False, "read": False, "why": "no slot is free"})
        go.set()
        await call
        assert len(model.calls) == 1 and await counted(client) == {"refused": 1}


@pytest.mark.parametrize("keeps", [False, None])
async def test_engine_without_a_prefix_cache_gets_no_hint(keeps: bool | None) -> None:
    model = ScriptedModel(lambda _: "x")
    async with client_of(app_of(model, keeps=keeps)) as client:
        answer = await client.post("/ramify/prefix", json=HINT)
        assert answer.status_code == 202 and "no engine here keeps" in answer.json()["why"]
    assert model.calls == []


async def test_gateway_passes_hints_to_a_gateway_behind_it() -> None:
    model = ScriptedModel(lambda _: "x")
    inner = httpx.ASGITransport(app_of(model))
    outer = create_gateway("http://inner", transport=inner)
    async with client_of(outer) as client:
        assert (await client.post("/ramify/prefix", json=HINT)).json()["read"] is True
    assert len(model.calls) == 1


async def test_engine_that_fails_a_hint_is_reported_and_still_used() -> None:
    model = ScriptedModel(lambda _: "x", faults=[Fault.ERROR_500])
    async with client_of(app_of(model)) as client:
        answer = (await client.post("/ramify/prefix", json=HINT)).json()
        assert (answer["sent"], answer["read"]) == (True, False) and "scripted failure" in answer["why"]
        assert (await client.post("/chat/completions", json=CALL)).status_code == 200
        assert await counted(client) == {"failed": 1}


async def test_call_goes_where_its_prefix_was_read() -> None:
    models = [ScriptedModel(lambda _: "x") for _ in range(2)]
    app = app_of(*models, slots=4)
    gateway: Gateway = app.state.gateway
    async with client_of(app) as client:
        gateway.replicas.all[0].running = 1  # so that the other one is the better place
        assert (await client.post("/ramify/prefix", json=HINT)).json()["read"] is True
        gateway.replicas.all[0].running, gateway.replicas.all[1].running = 0, 3
        await client.post("/chat/completions", json=CALL)
        assert [len(model.calls) for model in models] == [0, 2]
        short = {"messages": [{"role": "system", "content": "short"}]}
        assert "too short" in (await client.post("/ramify/prefix", json=short)).json()["why"]


async def test_leaving_client_and_stopping_gateway_cancel_hints() -> None:
    held = Held()
    async with ScriptedServer(held.model) as server:
        app = create_gateway([Replica(0, 1, Upstream(server.base_url), EngineTraits(keeps_prefixes=True))])
        gateway: Gateway = app.state.gateway
        reading = asyncio.create_task(gateway.hint(HINT))
        await held.begun.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        held.begun.clear()
        again = asyncio.create_task(gateway.hint(HINT))
        await held.begun.wait()
        await gateway.drain(0)
        off = {"read": False, "why": "the gateway is stopping"}
        assert (await again).body() == {"sent": True, **off}
        assert (await gateway.hint(HINT)).body() == {"sent": False, **off}, "one that came just before"
        await gateway.aclose()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages"),
        ({**HINT, "model": 3}, "model"),
        ({**HINT, "tools": "all"}, "tools"),
        ({**HINT, "max_tokens": 5}, "max_tokens"),
    ],
)
async def test_bad_hint_is_refused_by_field(body: dict[str, object], param: str) -> None:
    model = ScriptedModel(lambda _: "x")
    async with client_of(app_of(model)) as client:
        answer = await client.post("/ramify/prefix", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert model.calls == []


async def test_client_sends_no_hint_to_other_servers() -> None:
    said = [Message("system", "be brief")]
    seen: list[str] = []

    async def foreign(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        return httpx.Response(200, json={"data": []})

    async with LLMClient("http://model.test", transport=httpx.MockTransport(foreign)) as client:
        for _ in range(2):
            assert await client.hint(said) == "the server is not a Ramify gateway"
    assert seen == ["GET /v1/models"]
    model = ScriptedModel(lambda _: "x")
    async with LLMClient("http://gateway", transport=httpx.ASGITransport(app_of(model))) as client:
        assert await client.hint(said) == ""
        assert "surrogates" in await client.hint([Message("system", "half a pair: \ud800")])
    faulty = httpx.MockTransport(lambda _: (_ for _ in ()).throw(httpx.ConnectError("nobody there")))
    async with LLMClient("http://gateway", transport=faulty) as client:
        assert await client.hint(said) == "nobody there"
    assert len(model.calls) == 1
