"""Output constraints that no answer can meet, or that crash or block the embedded engine, are refused by field."""

from __future__ import annotations

import json

import httpx
import pytest

from ramify.serving.gateway.engines.constraint_checks import check_constraints
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import ScriptedModel
from tests.serving.gateway.http.test_bad_input import ASK, PATHS


def shaped(schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


LONG = {"type": "string", "minLength": 10, "maxLength": 2}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"const": LONG}}}


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        *[
            (PATHS[0], shaped(schema), "response_format")
            for schema in (
                LONG,
                {"type": "array", "items": {"anyOf": [{"type": "null"}, LONG]}},
                {"$defs": {"a": LONG}, "$ref": "#/$defs/a"},
                {"type": "array", "minItems": 2, "maxItems": 1},
                {"type": "integer", "minimum": 2, "maximum": 1.5},
                {"type": "string", "pattern": "^a{10,2}$"},
                {"type": "string", "pattern": "^a{1,2}(b{ 3 , 2 })$"},
                {"type": "string", "pattern": "^\\\\{10,2}[}]$"},
                {"type": "string", "pattern": "^a{0000000010,0000000002}$"},
                {"type": "string", "pattern": "^a{+10,2}$"},
                {"type": "string", "pattern": "^a{10x,2y}$"},
                {"type": "string", "pattern": "^a{10{0,2}$"},
                {"type": "string", "pattern": "^{a,b}{3,2}$"},
                {"type": "string", "pattern": "^[]{10,2}$"},
                {"type": "string", "pattern": "^[]{10,2}]$"},
                {"type": "string", "pattern": "^[^]{10,2}$"},
                {"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]},
                {"$defs": {"a": [{"$ref": "#/$defs/b"}], "b": {"$ref": "#/$defs/a/0"}}},
            )
        ],
        (PATHS[0], {"response_format": {"type": "json_object", "schema": LONG}}, "response_format"),
        (PATHS[0], {"tools": [{"type": "function", "function": FUNCTION}]}, "tools"),
        (PATHS[1], {"json_schema": LONG}, "json_schema"),
        (PATHS[1], {"grammar": 'root ::= "#" "a"{10,2}'}, "grammar"),
        (PATHS[1], {"grammar": 'root ::= "a"{10 # {1,2}\n,2}'}, "grammar"),
        (PATHS[1], {"grammar": 'root ::= "\\"" [#"] "a"{0000000010,2}'}, "grammar"),
        (PATHS[2], {"text": {"format": {"type": "json_schema", "name": "a", "schema": LONG}}}, "text"),
    ],
)
async def test_impossible_constraint_does_not_reach_an_engine(path: str, more: dict[str, object], param: str) -> None:
    """llama.cpp took all memory there was, for one such call."""
    model = ScriptedModel(lambda _: "never")
    app = create_gateway("http://engine", transport=model)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(path, json={**ASK, "prompt": "hi", "input": "hi", **more})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert "no answer can meet this" in response.json()["error"]["message"] and not model.calls


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 2, "maxLength": 2, "pattern": "^a{1,2}\\{10,2\\}b{3,}$"},
        {"type": "object", "properties": {"minLength": {"type": "integer"}, "maxLength": {"const": 1}}},
        {"type": "string", "minLength": "10", "maxLength": 2},
        {"type": "string", "pattern": "^[{10,2}\\]{3,1}]$"},
        {"type": "string", "pattern": "(" * 900 + "a" + ")" * 900},
        {"type": "string", "pattern": "^{10}{2}{1,2,3}{,}{a,1}$"},
        {"$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#"}}}}, "$ref": "#/$defs/n"},
        {"$defs": {"a": {"$ref": "#/$defs/b/0"}, "b": [], "c": {"$ref": "#/$defs/b/-1"}}, "items": {"$ref": 5}},
        {"type": "string", "maxLength": 2**40},
        {"type": "integer", "minimum": 10**17},
    ],
)
async def test_other_constraints_are_left_to_the_engine(schema: object) -> None:
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "ok"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        assert (await client.post(PATHS[0], json={**ASK, **shaped(schema)})).status_code == 200


FAR = [
    {"type": "integer", "minimum": 2 * 10**15},
    {"type": "integer", "minimum": 1234567890123456},
    {"type": ["integer", "null"], "exclusiveMinimum": 1.2e17},
    {"type": "integer", "minimum": 10**17, "maximum": 2**63 - 1},
    {"type": "integer", "maximum": -(10**17)},
    {"type": "string", "minLength": 10, "maxLength": 2**32 + 2},
    {"type": "array", "items": {}, "maxItems": 2**31},
    {"type": "string", "minLength": -(2**31) - 1},
    {"properties": {"_" * 1001: {}}},
    {"$ref": "#/$defs/" + "_" * 1001},
    {"items": [{"$ref": f"#/$defs/{at}"} for at in range(2001)]},
]
NEAR = [
    {"type": "integer", "minimum": 10**15 - 2},
    {"type": "integer", "minimum": 10**17, "maximum": 2**63 - 2},
    {"type": "integer", "maximum": 10**17},
    {"type": "integer", "minimum": -(10**17)},
    {"type": "integer", "maximum": -(10**17), "minimum": -(10**18)},
    {"type": "string", "maxLength": 2**31 - 1},
    {"properties": {"_" * 1000: {}}},
    {"$defs": {str(at): {} for at in range(2000)}, "items": [{"$ref": f"#/$defs/{at % 2000}"} for at in range(3000)]},
]


@pytest.mark.parametrize("llama_cpp", [False, True])
@pytest.mark.parametrize(("schema", "ends_it"), [*((one, True) for one in FAR), *((one, False) for one in NEAR)])
async def test_constraints_that_crash_only_llama_cpp_are_refused_only_there(
    schema: dict[str, object], ends_it: bool, llama_cpp: bool
) -> None:
    """It lies behind this gateway, or another engine does, which can make such a shape."""
    model = ScriptedModel(lambda _: "ok")
    replica = Replica(0, 1, Upstream("http://engine", transport=model), EngineTraits(llama_cpp=llama_cpp))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_gateway([replica])), base_url="http://gateway"
    ) as client:
        response = await client.post(PATHS[0], json={**ASK, **shaped(schema)})
    assert response.status_code == (400 if ends_it and llama_cpp else 200)
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["param"] == "response_format" and "the embedded engine" in error["message"]


@pytest.mark.parametrize(
    "grammar", ['root ::= "set{3,1}"', 'root ::= "a" # {3,1}', "root ::= [{3,1}]", 'root ::= "((" ' + '("a")' * 2000]
)
async def test_literals_of_a_grammar_are_not_syntax(grammar: str) -> None:
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "ok"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        assert (await client.post(PATHS[0], json={**ASK, "grammar": grammar})).status_code == 200


@pytest.mark.parametrize(
    "more", [{"grammar": "root ::= " + "(" * 2000 + '"a"' + ")" * 2000}, shaped({"pattern": "(" * 2000 + ")" * 2000})]
)
async def test_too_deep_nesting_is_refused(more: dict[str, object]) -> None:
    model = ScriptedModel(lambda _: "never")
    app = create_gateway("http://engine", transport=model)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(PATHS[0], json={**ASK, **more})
    assert response.status_code == 400 and response.json()["error"]["param"] in more and not model.calls


@pytest.mark.parametrize(
    "text",
    [
        "{}" * 150_000,
        "{1,2" * 75_000,
        "[" * 300_000,
        '"' + "\\" * 300_000,
        "{" + "0" * 300_000,
        "{1" * 150_000,
        "#" * 300_000,
    ],
)
def test_constraints_are_scanned_in_linear_time(text: str) -> None:
    """By the time limit of the tests: what is not closed is not tried from each of its characters."""
    check_constraints({"grammar": text, **shaped({"pattern": text})})


def test_references_are_followed_in_linear_time() -> None:
    names = [f"#/$defs/{at}" for at in range(20_000)]
    schema = {"$defs": {str(at): {"$ref": ref} for at, ref in enumerate(names[1:])}}
    check_constraints(shaped(schema))
    assert isinstance(schema["$defs"]["19998"], dict)
    schema["$defs"]["19999"] = {"$ref": names[0]}
    with pytest.raises(ApiError, match="leads to itself"):
        check_constraints(shaped(schema))


@pytest.mark.parametrize(
    ("status", "message", "param"),
    [
        (500, "Failed to parse tools: Missing tool type: {}", "tools"),
        (500, "Failed to parse messages: key 'text' not found", "messages"),
        (500, "image input is not supported - hint: …", "messages"),
        (400, "Field 'seed': type must be number, but is string", "seed"),
        (400, "Expected 'messages' to be an array", "messages"),
        (400, "All non-assistant messages must contain 'content'", "messages"),
        (400, "top_logprobs requires logprobs to be set to true", "top_logprobs"),
        (400, "response_format type must be one of …", "response_format"),
        (400, '"prompt" must not be empty', "prompt"),
        (400, "[json.exception.out_of_range.403] key 'prompt' not found", "prompt"),
        (400, "Prompt contains invalid tokens", "prompt"),
        (400, "'input' is required", "input"),
        (400, "llama.cpp does not support 'previous_response_id'.", "previous_response_id"),
    ],
)
async def test_llama_cpp_errors_about_a_field_become_400_and_name_it(status: int, message: str, param: str) -> None:
    said = {"error": {"code": status, "message": message, "type": "server_error"}}
    app = create_gateway("http://engine", transport=httpx.MockTransport(lambda _: httpx.Response(status, json=said)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(PATHS[0], json=ASK)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["message"]) == (400, param, message)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (shaped({"type": "nope"}), "response_format"),
        ({"grammar": "root ::= root"}, "grammar"),
        ({}, None),
        ({"grammar": "root ::= root", "tools": [{}]}, None),
    ],
)
async def test_constraint_that_the_engine_refuses_is_named(more: dict[str, object], param: str | None) -> None:
    said = {"error": {"code": 400, "message": "Failed to initialize samplers: failed to parse grammar"}}
    app = create_gateway("http://engine", transport=httpx.MockTransport(lambda _: httpx.Response(400, json=said)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(PATHS[0], json={**ASK, **more})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("stream", [False, True])
async def test_unsatisfiable_constraint_found_by_the_sampler_is_a_400(
    stream: bool,
) -> None:
    """llama.cpp says so with 500, and in a stream by an event: no other replica could do it."""
    said = {
        "error": {"code": 500, "message": "got exception: Unexpected empty grammar stack after accepting piece: ."}
    }
    asked = 0

    def engine(_: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        event = b"data: " + json.dumps(said).encode() + b"\n\n"
        sse = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=sse, content=event) if stream else httpx.Response(500, json=said)

    replicas = [Replica(at, 1, Upstream("http://engine", transport=httpx.MockTransport(engine))) for at in range(2)]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_gateway(replicas)), base_url="http://gateway"
    ) as client:
        body = {**ASK, "stream": stream, **shaped({"type": "string", "pattern": "^[z-a]$"})}
        response = await client.post(PATHS[0], json=body)
    assert (response.status_code, response.json()["error"]["param"], asked) == (400, "response_format", 1)
    assert all(one.failures == 0 for one in replicas)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"grammar": 'a ::= "x"\n' * 2000}, 200),
        ({"grammar": 'a ::= "x"\n' * 2001}, 400),
        ({"dry_penalty_last_n": 1_000_000}, 200),
        ({"dry_penalty_last_n": 2**31 - 1}, 400),
    ],
    ids=["rules", "too many rules", "memory", "too long a memory"],
)
async def test_other_limits_of_the_embedded_engine(more: dict[str, object], status: int) -> None:
    model = ScriptedModel(lambda _: "ok")
    replica = Replica(0, 1, Upstream("http://engine", transport=model), EngineTraits(llama_cpp=True))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_gateway([replica])), base_url="http://gateway"
    ) as client:
        response = await client.post(PATHS[0], json={**ASK, **more})
    assert response.status_code == status
    assert status == 200 or response.json()["error"]["param"] in more
