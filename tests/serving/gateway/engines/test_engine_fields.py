"""What a client may say to an engine that reaches beyond its own call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.engines.engine_fields import _FIELDS, Reach, apart, check_allowed
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.protocol.agent_hints import HintDialect
from ramify.serving.testing import ScriptedModel
from tests.serving.gateway.http.gateway_in_process import MESSAGES, client_of

XARG = "vllm_xargs.kv_transfer_params"
ADVICE = {name for name in _FIELDS if name.startswith("nvext.agent_hints.")}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": MESSAGES},
    "/completions": {"prompt": "hi"},
    "/responses": {"input": "hi"},
}


def with_field(body: dict[str, Any], name: str, value: object = 7) -> dict[str, Any]:
    *outer, last = name.split(".")
    said: dict[str, Any] = {last: value}
    for part in reversed(outer):
        said = {part: said}
    return {**body, **said}


async def asked(
    bodies: dict[str, dict[str, Any]], *allowed: str, keys: tuple[str, ...] = (), **traits: Any
) -> tuple[list[httpx.Response], list[dict[str, Any]]]:
    """The gateway's answers to these requests, and what the engine got."""
    model = ScriptedModel(lambda _: "ok")
    replica = Replica(0, 2, Upstream("http://engine", transport=model), EngineTraits(**traits))
    app = create_gateway([replica], api_keys=keys, allow_fields=allowed)
    shown = {"authorization": f"Bearer {keys[0]}"} if keys else {}
    async with client_of(app, **shown) as client:
        answers = [await client.post(path, json=body) for path, body in bodies.items()]
    return answers, [dict(call.body) for call in model.calls]


@pytest.mark.parametrize("reads_tags", [False, True])
@pytest.mark.parametrize("keys", [(), ("a",), ("a", "b")])
@pytest.mark.parametrize("name", sorted({*_FIELDS, XARG, "vllm_xargs.deadline"} - ADVICE))
async def test_a_field_that_reaches_beyond_its_call_is_refused_by_name(
    name: str, keys: tuple[str, ...], reads_tags: bool
) -> None:
    bodies = {path: with_field(body, name) for path, body in BODIES.items()}
    answers, told = await asked(bodies, keys=keys, reads_tags=reads_tags)
    assert not told
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name)
        if _FIELDS.get(name) is Reach.ID:
            assert "x-request-id" in error["message"]
        else:
            assert error["message"].endswith(f"--allow-field {name}")


@pytest.mark.parametrize(
    "name", sorted({name for name, reach in _FIELDS.items() if reach is not Reach.ID} | {XARG} - ADVICE)
)
async def test_what_the_operator_allows_reaches_the_engine(name: str) -> None:
    check_allowed([name])
    bodies = {path: with_field(body, name) for path, body in BODIES.items()}
    answers, told = await asked(bodies, name, reads_tags=True, hints=HintDialect.DYNAMO)
    assert [answer.status_code for answer in answers] == [200] * len(BODIES)
    for body in told:
        value: Any = body
        for part in name.split("."):
            value = value[part]
        assert value == 7


async def test_a_value_that_stands_for_the_default_is_left_out() -> None:
    """In SGLang, a call with the priority 0 overtakes those without one. llama.cpp's own clients send id_slot -1."""
    said = {"priority": 0, "id_slot": -1, "slot_id": -1, "kv_transfer_params": None}
    answers, told = await asked({path: {**body, **said} for path, body in BODIES.items()})
    assert {answer.status_code for answer in answers} == {200}
    assert all(not body.keys() & {"priority", "id_slot", "slot_id"} for body in told)


async def test_the_priority_0_reaches_the_engine_if_priorities_are_allowed() -> None:
    _, (told,) = await asked({"/chat/completions": {"messages": MESSAGES, "priority": 0}}, "priority")
    assert told["priority"] == 0


async def test_advice_about_precedence_is_left_out() -> None:
    hints = {"priority": 5, "strict_priority": 1, "latency_sensitivity": 0.5, "osl": 9}
    body = {"messages": MESSAGES, "nvext": {"agent_hints": hints}}
    answers, told = await asked({"/chat/completions": body}, hints=HintDialect.DYNAMO)
    assert answers[0].status_code == 200 and told[0]["nvext"] == {"agent_hints": {"osl": 9}}


async def test_tags_of_ramify_win_over_what_is_allowed() -> None:
    """An allowed entry of vllm_xargs stands beside the tags, and changes none."""
    body = {"messages": MESSAGES, "vllm_xargs": {"theirs": 1, "compound_id": "run"}}
    _, (told,) = await asked({"/chat/completions": body}, "vllm_xargs.theirs", keys=("a", "b"), reads_tags=True)
    assert told["vllm_xargs"]["theirs"] == 1 and told["vllm_xargs"]["compound_id"].endswith("/run")


async def test_names_in_an_engine_are_each_clients_own() -> None:
    names = {"cache_salt": "s", "session_id": "s", "extra_key": "s", "agent_hint": {"session_id": "s"}}
    body = {"messages": MESSAGES, **names}
    (_, (one,)), (_, (other,)), (_, (alone,)) = [
        await asked({"/chat/completions": body}, keys=keys, hints=HintDialect.VLLM)
        for keys in (("a", "b"), ("b", "a"), ("a",))
    ]
    for name in ("cache_salt", "session_id", "extra_key"):
        assert one[name] != other[name] and one[name].endswith("/s") and alone[name] == "s"
    assert one["agent_hint"]["session_id"] != other["agent_hint"]["session_id"]


async def test_calls_of_two_clients_with_one_request_id_have_different_ones_in_the_engine() -> None:
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway([Replica(0, 2, Upstream("http://engine", transport=model))], api_keys=["a", "b"])
    for key in "ab":
        async with client_of(app, authorization=f"Bearer {key}") as client:
            said = await client.post(
                "/chat/completions", json={"messages": MESSAGES}, headers={"x-request-id": "mine"}
            )
        assert said.headers["x-request-id"] == "mine", "the client knows its call by its own id"
    one, other = [call.headers["x-request-id"] for call in model.calls]
    assert one != other and one.endswith("-mine") and other.endswith("-mine")


@pytest.mark.parametrize("field", ["messages", "input"])
def test_an_image_that_vllm_keeps_under_a_name_is_its_clients_own(field: str) -> None:
    """A part with a `uuid` and no image stands for the image that came first under this name; a number is a name."""
    text, answer = {"type": "text", "text": "what is it?"}, {"role": "assistant", "content": "a cat"}

    def images(*names: object) -> dict[str, object]:
        parts = [text, *({"type": "image_url", "image_url": None, "uuid": name} for name in names)]
        return {field: [{"role": "user", "content": parts}, answer, "no message"]}

    assert apart(images("cat", 7, None), "c") == images("c/cat", "c/7", None)
    assert apart(images("cat", 7, None), "") == images("cat", 7, None)
    assert apart({field: "hi"}, "c") == {field: "hi"}


def test_a_session_that_a_client_closes_at_dynamo_is_its_own() -> None:
    body = {"nvext": {"session_control": {"session_id": "s", "action": "close"}}}
    assert apart(body, "c") == {"nvext": {"session_control": {"session_id": "c/s", "action": "close"}}}


def test_names_of_several_prompts_are_each_clients_own() -> None:
    assert apart({"extra_key": ["x", "y"], "n": 1}, "c") == {"extra_key": ["c/x", "c/y"], "n": 1}
    assert apart({"extra_key": ["x", None]}, "c") == {"extra_key": ["c/x", None]}, "no key, and no key named None"
    assert apart({"extra_key": ["x"], "cache_salt": None}, "") == {"extra_key": ["x"], "cache_salt": None}
    assert apart({"session_id": 5, "conversation_id": 0}, "c") == {"session_id": "c/5", "conversation_id": "c/0"}


def test_media_in_the_output_of_a_tool_are_each_clients_own() -> None:
    item = {"type": "function_call_output", "output": [{"type": "input_image", "uuid": "p"}, {"uuid": None}, "x"]}
    named = [{"type": "input_image", "uuid": "c/p"}, {"uuid": None}, "x"]
    assert apart({"input": [item, "hi"]}, "c") == {"input": [{**item, "output": named}, "hi"]}
    assert apart({"input": [item]}, "") == {"input": [item]}
    deep: Any = []
    for _ in range(5000):
        deep = [{"content": deep}]
    assert apart({"messages": deep}, "c")["messages"], "however deep"


@pytest.mark.model
@pytest.mark.parametrize("name", ["priority", "request_id", "kv_transfer_params", "data_parallel_rank", XARG])
async def test_the_embedded_engine_is_told_none_of_them(name: str, weights: Path) -> None:
    """llama.cpp would ignore it."""
    settings = GatewaySettings(home=weights.parent, model=str(weights))
    async with (
        LocalGateway(settings) as served,
        httpx.AsyncClient(base_url=served.base_url, trust_env=False, timeout=60) as client,
    ):
        body = {"messages": MESSAGES, "max_tokens": 1}
        answer = await client.post("/chat/completions", json=with_field(body, name))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert "the embedded engine does not support it" in answer.json()["error"]["message"]
        assert (await client.post("/chat/completions", json=body)).status_code == 200
