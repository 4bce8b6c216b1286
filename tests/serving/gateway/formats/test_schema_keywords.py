"""Schemas that the embedded engine enforces, and those that are refused by keyword."""

from __future__ import annotations

from typing import Any

import pytest

from ramify.serving.gateway.formats.schema_keywords import NotEnforced, check_schema, with_patterns

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
    assert {name for name in ENFORCED if changed["properties"][name] != ENFORCED[name]} == {"pattern", "classes"}


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
