"""No client is told by an engine's cache what another has sent."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ramify.serving.gateway.engines.client_isolation import Isolation, isolation_of, with_own_cache
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.protocol import wire
from ramify.serving.testing import ScriptedModel
from tests.serving.gateway.http.gateway_in_process import client_of

BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/completions": {"prompt": "hi"},
    "/responses": {"input": "hi"},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}


class Engine(ScriptedModel):
    """An engine at a URL, of this make. It is a gateway if `headers` say so."""

    def __init__(self, owner: object, headers: dict[str, str] | None = None, status: int = 200) -> None:
        super().__init__(lambda _: "ok")
        self._listed = httpx.Response(status, json={"data": [{"id": "m", "owned_by": owner}]}, headers=headers or {})
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/models"):
            return await super().handle_async_request(request)
        self.asked += 1
        listed = self._listed
        return httpx.Response(listed.status_code, headers=listed.headers, content=listed.content)


async def bodies_at(engine: Engine, *keys: str, reads_tags: bool = False) -> list[dict[str, Any]]:
    """What the engine gets of calls of the first key."""
    replica = Replica(0, 4, Upstream("http://engine", transport=engine), EngineTraits(reads_tags=reads_tags))
    app = create_gateway([replica], api_keys=keys)
    shown = {"authorization": f"Bearer {keys[0]}"} if keys else {}
    async with client_of(app, **shown) as client:
        for path, body in BODIES.items():
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
    return [dict(call.body) for call in engine.calls]


@pytest.mark.parametrize("reads_tags", [False, True])
@pytest.mark.parametrize(
    ("engine", "takes"),
    [
        (("vllm",), "cache_salt"),
        (("sglang",), "cache_salt"),
        (("llamacpp",), "cache_prompt"),
        (("llamacpp", {wire.GATEWAY_HEADER: "1"}), "cache_salt"),
        (("openai",), None),
        ((None,), None),
        ((["vllm"],), None),
        (("vllm", {}, 404), None),
    ],
)
async def test_an_engine_at_a_url_keeps_clients_apart_in_its_own_way(
    engine: tuple[Any, ...], takes: str | None, reads_tags: bool
) -> None:
    made = Engine(*engine)
    a, b = await bodies_at(made, "a", "b", reads_tags=reads_tags), await bodies_at(Engine(*engine), "b", "a")
    assert made.asked == 1, "for all calls"
    for one, other in zip(a, b, strict=True):
        both = {"cache_salt", "cache_prompt"} & one.keys()
        assert both == ({takes} if takes else set())
        if takes == "cache_salt":
            assert one[takes] != other[takes]
        elif takes:
            assert one[takes] is False
    for keys in ((), ("a",), ("a", "a")):
        for body in await bodies_at(Engine(*engine), *keys):
            assert not {"cache_salt", "cache_prompt"} & body.keys()


async def test_an_engine_that_does_not_answer_is_asked_again() -> None:
    engine = Engine("vllm", status=503)
    upstream = Upstream("http://engine", transport=engine)
    assert (await upstream.keeps_apart(), await upstream.keeps_apart(), engine.asked) == (Isolation.NONE,) * 2 + (2,)


def test_each_prompt_of_several_has_a_salt() -> None:
    assert with_own_cache({"cache_salt": ["c/x", None]}, Isolation.SALT, "c") == {"cache_salt": ["c/x", "c"]}
    assert with_own_cache({"cache_salt": "c/x"}, Isolation.SALT, "c") == {"cache_salt": "c/x"}
    assert with_own_cache({"cache_prompt": True}, Isolation.NO_CACHE, "c") == {"cache_prompt": False}
    assert with_own_cache({"cache_prompt": True}, Isolation.NO_CACHE, "") == {"cache_prompt": True}


@pytest.mark.parametrize(
    "listed", [{}, {"data": None}, {"data": ["x"]}, {"data": [{}]}, {"data": {"owned_by": "vllm"}}]
)
def test_an_odd_list_of_models_says_nothing(listed: dict[str, Any]) -> None:
    assert isolation_of(listed, gateway=False) is Isolation.NONE
