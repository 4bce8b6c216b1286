"""Two clients with keys of their own: neither sees, joins, cancels or teaches what is the other's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.http_guard import Keys
from ramify.serving.testing import Fault, ScriptedModel
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


SAME = "run"
ROUTES: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "body": ({"vllm_xargs": {"compound_id": SAME, "fork_group": "g", "compound_branch": "0"}}, {}),
    "header": ({}, {"x-ramify-tags": '{"compound_id":"run","fork_group":"g","compound_branch":"0"}'}),
    "both": ({"vllm_xargs": {"compound_id": SAME}}, {"X-Ramify-Tags": '{"fork_group":"g","compound_branch":"0"}'}),
}
APIS_OF: dict[str, dict[str, object]] = {
    "/chat/completions": ASK,
    "/completions": {"prompt": "hi"},
    "/responses": {"input": "hi"},
    "/messages": {**ASK, "max_tokens": 9, "metadata": {"user_id": "run"}},
}


@pytest.mark.parametrize("path", APIS_OF)
@pytest.mark.parametrize("route", ROUTES)
async def test_no_way_into_the_run_of_another(path: str, route: str) -> None:
    """The same names, by each API and each route of tags."""
    hold, inside = asyncio.Event(), asyncio.Queue[str]()

    async def wait(request: ChatRequest) -> str:
        inside.put_nowait("call")
        await hold.wait()
        return "ok"

    model = ScriptedModel(wait)
    more, headers = ROUTES[route]
    app = create_gateway(engine(model), api_keys=["a", "b"])
    async with client_of(app, "a") as a, client_of(app, "b") as b:
        mine = asyncio.create_task(a.post(path, json={**APIS_OF[path], **more}, headers=headers))
        theirs = asyncio.create_task(b.post(path, json={**APIS_OF[path], **more}, headers=headers))
        for _ in range(2):
            await inside.get()
        for wanted in ({"compound_id": "run"}, {"fork_group": "g"}, {"compound_id": "run", "fork_group": "g"}):
            for disguise in ("RUN", " run", "run\u200b", "\uff52un", "../run", "*", "%"):
                odd = dict.fromkeys(wanted, disguise)
                assert (await b.post("/ramify/cancel", json=odd)).json() == {"cancelled": 0}
        assert (await b.post("/ramify/release", json={"compound_id": "run"})).json() == {"engines": 0}
        assert (await b.post("/ramify/cancel", json={"compound_id": "run"})).json() == {"cancelled": 1}, "its own"
        assert (await theirs).status_code == 499
        seen = (await a.get("/ramify/requests?compound_id=run")).json()
        assert ([one["outcome"] for one in seen["requests"]], seen["compounds"][0]["calls"]) == (["running"], 1)
        hold.set()
        assert (await mine).status_code == 200
    first, second = (call.body["vllm_xargs"] for call in model.calls)
    assert isinstance(first, dict) and isinstance(second, dict)
    assert first["compound_id"] != second["compound_id"] and first["fork_group"] != second["fork_group"]


async def test_a_name_of_another_with_its_prefix_is_not_the_others() -> None:
    """Prefixes of clients are no secret where engines write logs."""
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway(engine(model), api_keys=["a", "b"])
    owner = Keys(["a", "b"]).owner(b"Bearer a")
    async with client_of(app, "b") as b:
        forged = {"vllm_xargs": {"compound_id": f"{owner}/run", "app_id": f"{owner}/app"}, "cache_salt": owner}
        assert (await b.post("/chat/completions", json={**ASK, **forged})).status_code == 200
        shown = (await b.get("/ramify/requests")).json()["compounds"]
        assert [one["id"] for one in shown] == [f"{owner}/run"]
    told: Any = model.calls[0].body
    assert not told["vllm_xargs"]["compound_id"].startswith(owner) and not told["cache_salt"].startswith(owner)


@pytest.mark.parametrize("name", ["compound_id", "fork_group", "app_id"])
async def test_a_name_that_is_too_long_with_its_clients_is_refused_with_the_right_limit(name: str) -> None:
    app = create_gateway(engine(ScriptedModel(lambda _: "ok")), api_keys=["a", "b"])
    async with client_of(app, "a") as a:
        for length, status in ((247, 200), (248, 400), (256, 400), (257, 400)):
            tags = {"vllm_xargs": {name: "é" * length}}
            answer = await a.post("/chat/completions", json={**ASK, **tags})
            assert answer.status_code == status, answer.text
            if length in (248, 256):
                assert answer.json()["error"]["message"].startswith(f"{name}: must have at most 247 characters")


async def test_a_response_is_its_clients_alone() -> None:
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway(engine(model), api_keys=["a", "b"])
    async with client_of(app, "a") as a, client_of(app, "b") as b:
        whole = (await a.post("/responses", json={"input": "hi"})).json()["id"]
        streamed = (await a.post("/responses", json={"input": "hi", "stream": True})).text
        for earlier in (whole, _id_in(streamed)):
            on = {"input": "more", "previous_response_id": earlier}
            refused = await b.post("/responses", json=on)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
            assert (await a.post("/responses", json=on)).status_code == 200
    assert len(model.calls) == 4, "the other's never reached the engine"


def _id_in(stream: str) -> str:
    first = next(line for line in stream.split("\n") if line.startswith("data: "))
    return str(json.loads(first[6:])["response"]["id"])


async def test_names_of_any_kind_get_their_clients() -> None:
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway(engine(model), api_keys=["a", "b"])
    owner = Keys(["a", "b"]).owner(b"Bearer a")
    async with client_of(app, "a") as a:
        asked = {**ASK, "session_id": 5, "extra_key": ["x", 7, None]}
        assert (await a.post("/chat/completions", json=asked)).status_code == 200
    chat = model.calls[0].body
    assert (chat["session_id"], chat["extra_key"]) == (f"{owner}/5", [f"{owner}/x", f"{owner}/7", None])


async def test_a_hint_that_fails_shows_no_address_of_an_engine_to_clients_with_keys() -> None:
    model = ScriptedModel(lambda _: "ok", faults=[Fault.REFUSE, Fault.ERROR_500] * 2)
    for keys, shown in ((["a"], False), ([], True)):
        app = create_gateway(engine(model, keeps_prefixes=True), api_keys=keys)
        async with client_of(app, "a") as a:
            for _ in range(2):
                said = (await a.post("/ramify/prefix", json=ASK)).json()
                assert said["sent"] and not said["read"] and ("http://engine" in said["why"]) is shown
