"""Hints of other serving systems on their way through the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.protocol.agent_hints import HintDialect
from ramify.serving.testing import ScriptedModel
from tests.serving.gateway.http.gateway_in_process import MESSAGES, client_of

HINTS = {"nvext": {"agent_hints": {"priority": 5, "osl": 9}}, "agent_hint": {"session_id": "s"}}
HEADERS = {"x-dynamo-session-id": "mine"}


async def sent(
    traits: EngineTraits, stream: bool = False, said: dict[str, str] = HEADERS
) -> tuple[dict[str, Any], dict[str, str]]:
    """What an engine gets of a call with hints."""
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway([Replica(0, 2, Upstream("http://engine", transport=model), traits)])
    async with client_of(app) as client:
        body = {"model": "m", "messages": MESSAGES, "stream": stream, **HINTS}
        response = await client.post("/chat/completions", json=body, headers=said)
        assert response.status_code == 200
    (call,) = model.calls
    return dict(call.body), {k: v for k, v in call.headers.items() if k.startswith("x-dynamo")}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_reads_no_hints_gets_none(stream: bool) -> None:
    body, headers = await sent(EngineTraits(), stream)
    assert not headers and not body.keys() & {"nvext", "agent_hint", "vllm_xargs"}


async def test_dynamo_gets_its_hints_and_the_session() -> None:
    body, headers = await sent(EngineTraits(hints=HintDialect.DYNAMO))
    assert body["nvext"] == {"agent_hints": {"osl": 9}} and "agent_hint" not in body, "and no precedence"
    assert headers == {"x-dynamo-session-id": "session mine"}


async def test_dynamo_gets_what_a_client_says_of_its_session() -> None:
    said = {**HEADERS, "x-dynamo-parent-session-id": "other", "x-dynamo-session-final": "true"}
    _, headers = await sent(EngineTraits(hints=HintDialect.DYNAMO), said=said)
    mine = {"x-dynamo-session-id": "session mine", "x-dynamo-parent-session-id": "session other"}
    assert headers == {**mine, "x-dynamo-session-final": "true"}


async def test_our_scheduler_gets_a_session_as_a_workflow() -> None:
    body, _ = await sent(EngineTraits(reads_tags=True))
    assert body["vllm_xargs"] == {"slo_class": "best_effort", "compound_id": "session mine", "compound_stage": 0}
    assert "nvext" not in body
