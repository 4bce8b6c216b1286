"""A branch that is released, and a run that ends, tell the engine that its KV can go."""

from __future__ import annotations

from pathlib import Path

import httpx
import release_app

from ramify import Runtime
from ramify.serving.client import LLMClient
from ramify.serving.gateway.engine_messages import EngineMessages
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import ScriptedModel
from ramify.serving.vllm_plugin.messages_and_reports import GatewayMessages, Release


async def test_engines_hear_of_released_branches_and_then_of_the_end(home: Path, tmp_path: Path) -> None:
    socket = str(tmp_path / "engine.sock")
    model, engine = ScriptedModel(lambda _: "said"), GatewayMessages(socket)
    app = create_gateway([Replica(0, 4, Upstream("http://engine", transport=model), EngineTraits(reads_tags=True))])
    app.state.gateway.engines = EngineMessages({0: Path(socket)})
    client = LLMClient("http://gateway", transport=httpx.ASGITransport(app))
    async with client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.run(release_app.talks, 2) == ["said", "said"]
        run = str(runtime.last_run_id)
    heard = list(engine.take())
    await app.state.gateway.engines.aclose()
    engine.close()
    sent = [call.body["vllm_xargs"]["compound_branch"] for call in model.calls]  # type: ignore[index, call-overload]
    assert sent[0] == "root" and len(set(sent)) == 3
    assert heard == [Release(run, tuple(sorted(sent[1:]))), Release(run, None)]


async def test_a_server_that_is_no_gateway_hears_nothing(home: Path) -> None:
    asked = list[str]()
    model = ScriptedModel(lambda _: "said")

    class Noted(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            return await model.handle_async_request(request)

    client = LLMClient("http://model", transport=Noted())
    async with client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        await runtime.run(release_app.talks, 1)
    assert set(asked) == {"/v1/chat/completions"}
