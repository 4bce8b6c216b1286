"""Two clients with keys of their own: neither sees, joins, cancels or teaches what is the other's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.http_guard import Keys
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

ASK = {"messages": [{"role": "user", "content": "hi"}]}
RUN = {"vllm_xargs": {"compound_id": "run", "fork_group": "group", "fork_size": 2, "app_id": "app"}}


def client_of(app: Starlette, key: str) -> httpx.AsyncClient:
    shown = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1", headers=shown)


def engine(model: ScriptedModel, **traits: Any) -> list[Replica]:
    return [Replica(0, 4, Upstream("http://engine/v1", transport=model), EngineTraits(reads_tags=True, **traits))]


async def test_a_run_is_its_clients_alone() -> None:
    hold = asyncio.Event()
    inside: asyncio.Queue[str] = asyncio.Queue()

    async def wait(request: ChatRequest) -> str:
        inside.put_nowait("call")
        await hold.wait()
        return "ok"

    model = ScriptedModel(wait)
    app = create_gateway(engine(model), api_keys=["a", "b"])
    async with client_of(app, "a") as a, client_of(app, "b") as b:
        running = asyncio.create_task(a.post("/chat/completions", json={**ASK, **RUN}))
        await inside.get()
        seen = (await b.get("/ramify/requests")).json()
        assert (seen["requests"], seen["compounds"]) == ([], [])
        assert (await b.get("/ramify/apps")).json() == {"apps": []}
        assert (await a.get("/ramify/apps")).json()["apps"] == [
            {"app_id": "app", "calls": 1, "open": 1, "lengths": None}
        ]
        for wanted in ({"compound_id": "run"}, {"fork_group": "group"}):
            assert (await b.post("/ramify/cancel", json=wanted)).json() == {"cancelled": 0}
        late = {"vllm_xargs": {"compound_id": "run", "compound_deadline_at": 1.0}}
        assert (await b.post("/chat/completions", json={**ASK, **late})).status_code == 422
        own = (await a.get("/ramify/requests?compound_id=run")).json()
        assert own["requests"][0]["tags"]["compound_id"] == own["compounds"][0]["id"] == "run"
        assert own["compounds"][0]["deadline_s"] is None, "the other's deadline does not bind"
        assert (await a.post("/ramify/cancel", json={"compound_id": "run"})).json() == {"cancelled": 1}
        assert (await running).status_code == 499
    told: Any = model.calls[0].body["vllm_xargs"]
    assert {told[name].partition("/")[2] for name in ("compound_id", "fork_group", "app_id")} == {
        "run",
        "group",
        "app",
    }


async def test_each_client_has_a_salt_of_its_own() -> None:
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway(engine(model, keeps_prefixes=True), api_keys=["a", "b"])
    for key, more in (("a", {}), ("b", {}), ("a", {}), ("a", {"cache_salt": "mine"})):
        async with client_of(app, key) as client:
            assert (await client.post("/chat/completions", json={**ASK, **more})).status_code == 200
    first, other, again, own = [str(call.body["cache_salt"]) for call in model.calls]
    assert first == again != other
    assert own == f"{first}/mine"
    assert first != "a" and other != "b"


async def test_a_client_with_many_calls_does_not_keep_out_another() -> None:
    """One slot, twelve calls of a, and then one of b."""
    hold, order = asyncio.Event(), list[str]()

    async def answer(request: ChatRequest) -> str:
        order.append(request.messages[0].content)
        await hold.wait()
        return "ok"

    one_slot = Replica(
        0, 1, Upstream("http://engine/v1", transport=ScriptedModel(answer)), EngineTraits(reads_tags=True)
    )
    app = create_gateway([one_slot], api_keys=["a", "b"])

    def asking(client: httpx.AsyncClient, text: str) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(
            client.post("/chat/completions", json={"messages": [{"role": "user", "content": text}]})
        )

    async with client_of(app, "a") as a, client_of(app, "b") as b:
        calls = [asking(a, f"a{i}") for i in range(12)]
        while len((await a.get("/ramify/requests")).json()["requests"]) < 12 or not order:  # noqa: ASYNC110  # the gateway shows a call when it has come
            await asyncio.sleep(0.01)
        calls.append(asking(b, "b"))
        while not (await b.get("/ramify/requests")).json()["requests"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        hold.set()
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
    assert order.index("b") == 1, "the slot goes to b as soon as a's first call has left it"


async def test_one_key_is_one_client() -> None:
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway(engine(model, keeps_prefixes=True), api_keys=["a"])
    async with client_of(app, "a") as client:
        assert (await client.post("/chat/completions", json={**ASK, **RUN})).status_code == 200
    told: Any = model.calls[0].body
    assert told["vllm_xargs"]["compound_id"] == "run" and "cache_salt" not in told


def test_names_of_clients_are_stable_and_differ() -> None:
    keys, again = Keys(["a", "b"]), Keys(["b", "a"])
    names = [keys.owner(b"Bearer a"), keys.owner(b"Bearer b")]
    assert names == [again.owner(b"bearer a"), again.owner(b"bearer b")]
    assert len(set(names)) == 2 and keys.owner(b"Bearer c") == ""


def test_gateways_share_an_analyzer_only_where_no_client_learns_the_names_of_anothers_apps() -> None:
    def name(*keys: str) -> str:
        return GatewaySettings(home=Path(), api_keys=keys).analyzer_name

    assert name() == ""
    assert name("a", "b") == name("c", "d") == "keys", "in which each key has its own names"
    assert len({"", "keys", name("a"), name("b")}) == 4
    assert name("a") == name("a", "a"), "and is the same in every process"
    assert "secret" not in name("secret")
