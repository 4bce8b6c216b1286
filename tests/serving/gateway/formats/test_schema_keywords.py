"""Schemas that the embedded engine enforces, and those that are refused by keyword."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

from ramify.serving.gateway.formats.schema_keywords import (
    NotEnforced,
    check_schema,
    with_patterns,
    with_plain_references,
)

BIT: Any = {"type": "integer", "minimum": 0, "maximum": 1}
ENFORCED: dict[str, Any] = {
    "pattern": {"type": "string", "pattern": r"^\d{3}-[\w.]{1,3}$"},
    "classes": {"type": "string", "pattern": r"^(foo|ba[rz])?\s.{1,2}$"},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4},
    "date": {"type": "string", "format": "date"},
    "moment": {"type": "string", "format": "date-time"},
    "bounds": {"type": "integer", "minimum": 3, "maximum": 17},
    "exclusive": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "items": {"type": "array", "items": BIT, "minItems": 2, "maxItems": 3},
    "prefix": {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "x"}], "minItems": 2},
    "enum": {"enum": ["a", 1, None, [2]]},
    "const": {"const": {"k": ['"\\']}, "description": "notes say nothing"},
    "union": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/bit"}]},
    "apart": {"oneOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]},
    "types": {"type": ["string", "null"], "maxLength": 3, "uniqueItems": False},
    "inner": {"type": "object", "properties": {"a": BIT}, "required": ["a"], "additionalProperties": False},
}
SCHEMA: Any = {
    "type": "object",
    "$defs": {"bit": BIT},
    "properties": ENFORCED,
    "required": list(ENFORCED),
    "additionalProperties": False,
}


def test_allowed_keywords_are_allowed() -> None:
    check_schema(SCHEMA)
    changed: Any = with_patterns(SCHEMA, strict=True)
    assert changed["properties"]["pattern"]["pattern"] != ENFORCED["pattern"]["pattern"]
    translated = {name for name in ENFORCED if changed["properties"][name] != ENFORCED[name]}
    assert translated == {"pattern", "classes", "date", "moment"}


def test_a_property_that_is_called_like_a_keyword_is_none() -> None:
    named = {"pattern": {"type": "string"}, "if": BIT, "enum": {"type": "string", "pattern": "b"}}
    schema = {"type": "object", "properties": named, "required": ["if"]}
    check_schema(schema)
    changed: Any = with_patterns(schema, strict=True)
    assert changed["properties"]["pattern"] == {"type": "string"}
    assert changed["properties"]["enum"]["pattern"] != "b"


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "number", "minimum": 1}, "minimum"),
        ({"type": "integer", "multipleOf": 2}, "multipleOf"),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": 0}, "exclusive"),
        ({"type": "integer", "minimum": 0.5}, "whole number"),
        ({"type": "string", "format": "email"}, "format 'email'"),
        ({"type": "string", "pattern": "^a$", "minLength": 1}, "minLength"),
        ({"type": "string", "pattern": "^(?=a)a$"}, "(?="),
        ({"minLength": 1}, "minLength"),
        ({"type": "object", "patternProperties": {"^a$": BIT}}, "patternProperties"),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, "propertyNames"),
        ({"type": "object", "minProperties": 1}, "minProperties"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required"),
        ({"if": BIT, "then": BIT}, "if"),
        ({"not": BIT}, "not"),
        ({"type": "array", "contains": BIT}, "contains"),
        ({"type": "array", "items": BIT, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "minItems": 1}, "minItems"),
        ({"type": "array", "prefixItems": [BIT], "items": False}, "items beside"),
        ({"type": "array", "prefixItems": [BIT], "minItems": 2}, "minItems"),
        ({"type": "array", "items": True}, "true or false"),
        ({"type": "string", "enum": ["a", 1]}, "enum"),
        ({"enum": ["aa"], "maxLength": 1}, "maxLength beside enum"),
        ({"allOf": [BIT, BIT]}, "allOf"),
        ({"anyOf": [BIT], "type": "integer"}, "type beside anyOf"),
        ({"oneOf": [BIT, {"type": "number"}]}, "oneOf"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"$ref": "#/$defs/a", "maxLength": 1}, "maxLength beside $ref"),
        ({"$defs": {"a": {"type": "any"}}, "$ref": "#/$defs/a"}, "type 'any'"),
        ({"properties": {"a": {"items": {"dependentSchemas": {}}}}}, "dependentSchemas"),
        ({"type": "string", "invented": 1}, "invented"),
        ({"minimum": 5}, "minimum without a type"),
        ({"title": "even", "multipleOf": 2}, "multipleOf without a type"),
        ({"type": "array", "items": BIT, "maxItems": 2.0}, "maxItems"),  # llama.cpp would take it for none
        ({"type": "string", "minLength": "2"}, "minLength"),
        ({"type": "string", "maxLength": -1}, "maxLength"),
        ({"type": "string", "format": ["date"]}, "format"),
        ({"type": "object", "properties": {}, "required": [["a"]]}, "required"),
        ({"enum": []}, "enum"),
        ({"anyOf": []}, "anyOf"),
        ({"type": []}, "type"),
        ({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6}, "bounds"),
        ({"type": "integer", "minimum": 5, "exclusiveMaximum": 5}, "bounds"),
        ({"type": "object", "properties": {"$ref": BIT}}, "$ref"),
        ({"$ref": "#/$defs/missing"}, "#/$defs/missing"),
        ({"$defs": {"a": BIT}, "$ref": "#/$defs"}, "#/$defs"),
        ({"properties": {"a": {"$defs": {"x": BIT}}, "b": {"$ref": "#/properties/a/$defs/x"}}}, "$defs/x"),
        ({"default": {"type": "number"}, "properties": {"b": {"$ref": "#/default"}}}, "#/default"),
        ({"const": 10**20 + 1}, "digits"),
        ({"enum": [1, {"a": [2**64]}, {"a": [-(2**63) - 1]}]}, "digits"),
        ({"properties": {"a": {"$id": "b", "type": "null"}}}, "$id"),
    ],
)
def test_what_is_not_enforced_is_named(schema: Any, keyword: str) -> None:
    with pytest.raises(NotEnforced) as caught:
        check_schema(schema)
    assert keyword in str(caught.value)


def test_alternatives_that_a_property_tells_apart() -> None:
    def kind(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]}

    check_schema({"$defs": {"b": kind("b")}, "oneOf": [kind("a"), {"$ref": "#/$defs/b"}]})
    with pytest.raises(NotEnforced):
        check_schema({"oneOf": [kind("a"), kind("a")]})
    check_schema({"oneOf": [{"const": 1}, {"const": True}]})
    for same in ([1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]):
        with pytest.raises(NotEnforced):
            check_schema({"oneOf": [{"const": value} for value in same]})


def test_what_a_reference_names_is_checked_wherever_it_stands() -> None:
    def schema(a: Any) -> Any:
        items = {"type": "array", "prefixItems": [a]}
        return {"type": "object", "properties": {"a": items, "b": {"$ref": "#/properties/a/prefixItems/0"}}}

    check_schema(schema(BIT))
    with pytest.raises(NotEnforced, match="minimum"):
        check_schema(schema({"type": "number", "minimum": 1}))
    tree = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}}}
    check_schema({"$defs": {"tree": tree}, "$ref": "#/$defs/tree"})


def test_references_that_llama_cpp_would_mix_up_get_other_names() -> None:
    """Its rule for each has "-" for what is no ASCII letter or digit."""
    ref = {"$ref": "#/$defs/Ö"}
    schema = {
        "$defs": {"Ä": {"type": "object", "properties": {"default": ref}}, "Ö": BIT},
        "properties": {"a": {"$ref": "#/$defs/Ä"}, "b": ref, "c": {"const": ref}},
    }
    changed: Any = with_plain_references(schema)
    first, second = (changed["properties"][name]["$ref"].removeprefix("#/$defs/") for name in "ab")
    assert {first, second} == changed["$defs"].keys() == {"part0", "part1"}
    assert changed["$defs"][second] == BIT
    assert changed["$defs"][first]["properties"]["default"] == {"$ref": f"#/$defs/{second}"}
    assert changed["properties"]["c"] == {"const": ref}
    itself: Any = with_plain_references({**schema, "$ref": "#/$defs/Ä"})
    assert itself["$ref"].removeprefix("#/$defs/") in itself["$defs"]
    told_apart = {"$defs": {"Ä": BIT, "b": BIT}, "anyOf": [{"$ref": "#/$defs/Ä"}, {"$ref": "#/$defs/b"}]}
    assert with_plain_references(told_apart) is told_apart


def test_dates_are_days_of_the_calendar() -> None:
    changed: Any = with_patterns({"type": "string", "format": "date"}, strict=True)
    day = re.compile(changed["pattern"])
    first = datetime.date(1896, 1, 1)
    days = {str(first + datetime.timedelta(at)) for at in range(365 * 12)}  # 1900 has no 29 February
    texts = (f"{year}-{month:02}-{at:02}" for year in range(1896, 1907) for month in range(14) for at in range(33))
    assert all((text in days) == bool(day.search(text)) for text in texts)
    assert day.search("2000-02-29") and not day.search("0000-01-01") and not day.search("2000-1-1")
    moment = re.compile(with_patterns({"format": "date-time"}, strict=True)["pattern"])  # type: ignore[index]
    assert moment.search("2024-02-29T23:59:59.123+01:00") and not moment.search("2023-02-29T00:00:00Z")


def test_integers_have_both_bounds_or_none() -> None:
    """From one bound llama.cpp makes a rule that lets others through."""

    def bounds(schema: dict[str, Any]) -> dict[str, Any]:
        changed: Any = with_patterns({"type": ["integer", "null"], **schema}, strict=True)
        return {name: value for name, value in changed.items() if name != "type"}

    far = 10**15 - 1
    assert bounds({"minimum": 100}) == {"minimum": 100, "maximum": far}
    assert bounds({"exclusiveMaximum": 0}) == {"minimum": -far, "exclusiveMaximum": 0}
    assert bounds({"exclusiveMinimum": 0, "maximum": 9}) == {"exclusiveMinimum": 0, "maximum": 9}
    assert bounds({}) == {}
    assert with_patterns({"type": "string", "minimum": 1}, strict=True) == {"type": "string", "minimum": 1}
