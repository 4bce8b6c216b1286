"""The cost of a schema, a pattern or a grammar is computed before the embedded engine compiles it."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.gateway.engines.constraint_checks import BUDGET, CONSTRAINT_FIELDS, ConstraintBudget, check_budget
from ramify.serving.gateway.engines.constraint_cost import Choice, Cost, Rules
from ramify.serving.gateway.engines.constraint_parsing import Schemas, TooDeep, grammar, pattern
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.http import exchange
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import ScriptedModel
from tests.serving.gateway.http.test_bad_input import ASK, PATHS

MANY = 16_000
CONSTANTS = [{"const": f"v{at}"} for at in range(MANY)]
NAMES = [f"v{at}" for at in range(MANY)]


def bomb(deep: int, last: Any) -> dict[str, object]:
    """Each definition names the next one twice."""
    defs: dict[str, Any] = {f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(deep)}
    return {"$defs": {**defs, f"a{deep}": last}, "$ref": "#/$defs/a0"}


def deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def wide(names: int) -> dict[str, object]:
    return {"type": "object", "properties": {f"p{at}": {"type": "integer"} for at in range(names)}}


SCHEMAS: dict[str, Any] = {
    "alternatives": {"anyOf": CONSTANTS},
    "alternatives within": {"type": "array", "items": {"properties": {"a": {"oneOf": CONSTANTS[:2000]}}}},
    "an enum": {"enum": NAMES},
    "enums of references": {"$defs": {"e": {"enum": NAMES[:600]}}, "anyOf": [{"$ref": "#/$defs/e"}] * 2},
    "optional properties": wide(2000),
    "references twice each": bomb(40, {"type": "integer"}),
    "a chain of such": bomb(900, {"type": "integer"}),
    "levels": deep(100),
    "parentheses": {"type": "string", "pattern": "(" * 100 + "a" + ")" * 100},
    "optional parts": {"type": "string", "pattern": "^(a?){1000}$"},
    "few optional parts": {"type": "string", "pattern": "^(a?){50}$"},
    "a large class in many places": {
        "type": "string",
        "pattern": "^(" + "|".join([f"[{'a-z' * 20}]{at}" for at in range(500)]) + ")$",
    },
    "a length that is no integer": {
        "properties": {f"p{at}": {"type": "string", "maxLength": 1900.0} for at in range(600)}
    },
    "optional parts in C": {"type": "string", "pattern": "^(a?){+050x}$"},
    "optional parts written out": {"type": "string", "pattern": "^" + "a?" * 5000 + "$"},
    "optional parts of parts": {"type": "string", "pattern": "^((a?){8}){8}$"},
    "repetitions": {"type": "string", "pattern": "^" + "a{0,1999}" * 500 + "$"},
    "a long repetition": {"type": "string", "pattern": "^a{2001}$"},
    "a great least length": {"$defs": {"a": {"type": "string", "minLength": 2001}}, "$ref": "#/$defs/a"},
    "alternatives of a pattern": {"type": "string", "pattern": "^(" + "|".join(NAMES[:2000]) + ")$"},
    "empty alternatives": {"type": "string", "pattern": "^(" + "|" * 2000 + ")$"},
    "alternatives without anchors, each of which may follow any text": {"pattern": "|".join(NAMES[:800])},
    "names by patterns": {"patternProperties": {"(a?){99}": {}}},
    "names": {"required": [name * 30 for name in NAMES[:2000]]},
    "values": {"properties": {name: {"type": "integer", "minimum": 1} for name in NAMES}},
}
GRAMMARS = {
    "rules": "root ::= r0\n" + "\n".join(f"r{at} ::= r{at + 1} | r{at + 1}" for at in range(40)) + '\nr40 ::= "a"',
    "alternatives": "root ::= " + " | ".join(f'"{name}"' for name in NAMES[:2000]),
    "optional parts": 'root ::= ("a"?){50}',
    "a rule that is not used": 'root ::= "a"\nother ::= ("a"?){50}',
    "repetitions": "root ::= " + '"abcdefgh"{1999} ' * 100,
    "parentheses": "root ::= " + "(" * 100 + '"a"' + ")" * 100,
}
WAYS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"anyOf": CONSTANTS}}}},
    {"response_format": {"type": "json_object", "schema": {"anyOf": CONSTANTS}}},
    {"json_schema": {"anyOf": CONSTANTS}},
    {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"enum": NAMES}}}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": NAMES}}}]},
    {"tools": [{"type": "function", "name": "f", "parameters": {"enum": NAMES}}]},
    {"functions": [{"name": "f", "parameters": {"enum": NAMES}}]},
    {"structured_outputs": {"json": {"enum": NAMES}}},
    {"structured_outputs": {"json": json.dumps({"enum": NAMES})}},
    {"structured_outputs": {"choice": NAMES}},
    {"structured_outputs": {"regex": "(a?){99}"}},
    {"structured_outputs": {"grammar": GRAMMARS["rules"]}},
    {"guided_json": {"enum": NAMES}},
    {"guided_json": json.dumps({"enum": NAMES})},
    {"guided_choice": NAMES},
    {"guided_regex": "(a?){99}"},
    {"guided_grammar": GRAMMARS["rules"]},
    *({"grammar": text} for text in GRAMMARS.values()),
    {"stop": NAMES},
    {"logit_bias": {str(at): 1 for at in range(MANY)}},
    {"logit_bias": [[name, 1] for name in NAMES]},
    {"dry_sequence_breakers": NAMES[:100]},
    {"samplers": ["top_k"] * 100},
    {"grammar_triggers": [{"type": 0, "value": "a"}] * 100},
    {"n": 10**9},
    {"best_of": 1e9},
    {"top_logprobs": 49_000},
    {"n_probs": 49_000},
    {"prompt": ["hi"] * 200},
]


def formatted(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


async def answer(body: dict[str, Any], path: str = PATHS[0], *, llama_cpp: bool = True) -> httpx.Response:
    model = ScriptedModel(lambda _: "ok")
    traits = EngineTraits(llama_cpp=llama_cpp, keeps_prefixes=True)
    app = create_gateway([Replica(0, 1, Upstream("http://engine", transport=model), traits)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(path, json={**ASK, **body})
    assert bool(model.calls) == (response.status_code == 200)
    return response


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
async def test_too_costly_schema_does_not_reach_the_embedded_engine(schema: object) -> None:
    response = await answer(formatted(schema))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "shape_too_costly", "response_format")
    assert "the embedded engine allows " in error["message"], "it names the limit"
    assert (await answer(formatted(schema), llama_cpp=False)).status_code == 200, "others may do it"


@pytest.mark.parametrize("more", WAYS)
async def test_every_endpoint_and_field_has_the_same_budget(more: dict[str, Any]) -> None:
    response = await answer(more)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "shape_too_costly", next(iter(more)))


async def test_prefix_hints_have_the_same_budget() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"enum": NAMES}}}]
    assert (await answer({"tools": tools}, "/v1/ramify/prefix")).json()["error"]["code"] == "shape_too_costly"


async def test_budget_covers_all_fields_of_a_call_together() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": wide(150)}}
    named = {"name": "x" * 4000}
    assert (await answer({"tools": [tool] * 8})).status_code == 200
    assert (await answer({"tools": [tool] * 60})).json()["error"]["param"] == "tools"
    for one, other in (
        ({"json_schema": named}, {"guided_json": named}),
        ({"guided_regex": named["name"]}, {"grammar": named["name"]}),
        ({"json_schema": {"pattern": named["name"]}}, {"guided_regex": named["name"]}),
    ):
        budget = ConstraintBudget(text=5000 if one == {"json_schema": named} else 10**6, syntax=5000)
        check_budget(one, budget)
        check_budget(other, budget)
        with pytest.raises(ApiError, match="characters"):
            check_budget({**one, **other}, budget)


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": CONSTANTS[:1000]},
        {"enum": NAMES[:1000]},
        {"type": "string", "enum": NAMES[:1000]},  # as pydantic writes it, and as many as OpenAI takes
        wide(1000),
        {"$defs": {"e": {"enum": NAMES[:900]}}, "properties": {f"p{at}": {"$ref": "#/$defs/e"} for at in range(50)}},
        {"type": "array", "maxItems": 1000, "items": {"type": "string", "maxLength": 1000}},
        {"properties": {f"p{at}": {"type": "string", "maxLength": 1900} for at in range(60)}},
        {
            "$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n",
        },
        bomb(9, {"type": "integer"}),
        {"type": "string", "pattern": r"^(\d{3}-)?\d{4}( ext\. ?\d{1,5})?$"},
        {"type": "string", "pattern": "^(a{1000}){1000}$"},
        {"description": "long " * 100_000, "type": "integer"},
        deep(50),
        True,
    ],
)
async def test_feasible_constraints_are_admitted(schema: object) -> None:
    assert (await answer(formatted(schema))).status_code == 200


def cost(text: str, read: str = "pattern") -> Cost:
    rules = Rules()
    roots = [pattern(text, 64)] if read == "pattern" else grammar(text, rules, 64)
    return rules.most(roots)


@pytest.mark.parametrize(
    ("text", "width", "skips"),
    [
        ("abc", 1, 0),
        ("a|b|c", 3, 0),
        ("(a|b)(c|d|e)", 3, 0),
        ("(a|b)?(c|d|e)", 5, 1),
        ("a?b?c?d", 4, 3),
        ("(a?){10}b", 11, 10),
        ("((a?){3}){3}", 9, 9),
        ("(a|b*){2}", 4, 2),
        (r"\(a\|b\|c\)", 1, 0),
        ("[a|b|c?]", 1, 0),
        ("(?:a|b)", 2, 0),
        ("(((a", 1, 0),
        (")))a|b", 2, 0),
        ("*+?{2}a", 1, 0),
    ],
)
def test_ways_are_counted_where_they_begin(text: str, width: int, skips: int) -> None:
    found = cost(text)
    assert (found.width, found.skips) == (width, skips)


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ('root ::= "a" | "b" | c\nc ::= "d" | "e"', 4),
        ('root ::= ("a" |\n "b")\n', 2),
        ('root ::= "a|b|c" # | | |\n', 1),
        ('root ::= [|"] | "x"', 2),
        ('root ::= "a" root "b" | "c"', 2),
        ("root ::= missing | missing", 2),
        ('a ::= "1" | "2" | "3"\na ::= "1"', 1),
    ],
)
def test_rules_of_a_grammar_are_followed(text: str, width: int) -> None:
    assert cost(text, "grammar").width == width


@given(st.text(alphabet='ab(|)[]?*+{},0123\\^$.:="#\n', max_size=60))
def test_any_text_has_a_cost(text: str) -> None:
    for read in ("pattern", "grammar"):
        try:
            found = cost(text if read == "pattern" else f"root ::= {text}", read)
        except TooDeep:
            continue
        assert found.width >= 0 and found.size >= 0


schemas = st.recursive(
    st.sampled_from(
        [
            {"type": "integer"},
            {"$ref": "#"},
            {"$ref": "#/$defs/a"},
            {"enum": [1, "a"]},
            {"pattern": "a|b"},
            True,
            5,
            None,
        ]
    ),
    lambda inner: (
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3)})
        | st.fixed_dictionaries({"items": inner, "minItems": st.integers(-1, 5), "maxItems": st.integers(-1, 5)})
        | st.fixed_dictionaries({"$defs": st.dictionaries(st.sampled_from("ab"), inner), "type": st.lists(inner)})
    ),
    max_leaves=10,
)


@given(st.fixed_dictionaries(dict.fromkeys(CONSTRAINT_FIELDS, schemas)))
def test_any_schema_is_within_budget_or_refused_by_field(body: dict[str, object]) -> None:
    try:
        check_budget(body, ConstraintBudget(width=3, size=200, depth=8))
    except ApiError as error:
        assert error.status == 400 and error.param in CONSTRAINT_FIELDS


def test_a_part_that_many_references_name_is_reckoned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may spell its place differently, and name parts within each other."""
    reckoned = Mock(side_effect=Schemas._parts)
    monkeypatch.setattr(Schemas, "_parts", lambda self, said: reckoned(self, said))
    names = [f"#/$defs/a/anyOf/{zeros}" for zeros in ("0" * n for n in range(1, 10))]
    inner: dict[str, Any] = {"properties": {f"p{at}": {"type": "null"} for at in range(100)}}
    for _ in range(20):
        names.append(names[-1] + "/anyOf/0")
        inner = {"anyOf": [inner]}
    schema = {"$defs": {"a": {"anyOf": [inner]}}, "anyOf": [{"$ref": name} for name in names]}
    rules = Rules()
    found = rules.most([Schemas(rules, 64).expression(schema)])
    assert reckoned.call_count <= 160, "about as often as it has parts"
    assert found.size > 29 * 1000, "each is written out, with every part that it holds"


@given(schemas)
def test_an_extra_alternative_never_costs_less(schema: object) -> None:
    rules = Rules()
    made = Schemas(rules, 64)
    one = made.expression({"anyOf": [schema]})
    before = rules.most([one])
    after = rules.most([Choice((one, made.expression({"type": "null"})))])
    assert after.width >= before.width and after.size >= before.size


@pytest.mark.parametrize(
    "text", ["(" * 32_000, "a" * 32_000, "a?" * 16_000, "[" * 32_000, "\\" * 32_000, "{1" * 16_000, "|" * 32_000]
)
def test_texts_are_scanned_in_linear_time(text: str) -> None:
    """By the time limit of the tests."""
    for field in ("grammar", "guided_regex"):
        try:
            check_budget({field: f"root ::= {text}"})
        except ApiError as error:
            assert error.param == field


DEEP = 100_000


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"x": ' * DEEP + b"1" + b"}" * DEEP,
        b"[" * DEEP,
        b'{"messages": [' + b"{}," * exchange.MAX_PARTS + b"{}]}",
        b'{"prompt": [' + b"[]," * exchange.MAX_PARTS + b"[]]}",
    ],
    ids=["arrays", "objects", "open", "many objects", "many arrays"],
)
async def test_body_with_many_brackets_is_refused_at_once(content: bytes) -> None:
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "never"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(PATHS[0], content=content)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "body")


def test_budget_equals_the_documentation() -> None:
    assert ConstraintBudget(10_000, 131_072, 32_768, 64, 1_000, 1_000_000, 32) == BUDGET
