"""Which JSON schemas llama.cpp enforces: an allow-list of keywords, by what stands beside them.

llama.cpp turns a schema into a grammar by the first rule that fits, and ignores every keyword that this rule does not
read. `check_schema` refuses those by name; `with_patterns` translates the patterns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from ramify.serving.gateway.formats.pattern_translation import UnsupportedPattern, translated

Json = Mapping[str, object]
_NOTES = frozenset(
    {
        "$comment", "$defs", "$id", "$schema", "definitions", "default", "deprecated", "description", "discriminator",
        "examples", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip  # they promise nothing about an answer
_OBJECT = frozenset({"properties", "required", "additionalProperties"})
_ARRAY = frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"})
_STRING = frozenset({"pattern", "format", "minLength", "maxLength"})
_INTEGER = frozenset({"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"})
_LOW, _HIGH = {"minimum": 0, "exclusiveMinimum": 1}, {"maximum": 0, "exclusiveMaximum": 1}
_FARTHEST = 10**15 - 1  # the other bound where only one is given
_LENGTHS = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_VALUES = frozenset({"const", "enum", "default", "examples"})
_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions", "patternProperties"})
_FOLDERS = ("$defs", "definitions")
_NO_RULE_CHARACTER = re.compile(r"[^a-zA-Z0-9-]+")
_MOST_APART = 100  # alternatives of a oneOf: each is compared with each
_FORMATS = frozenset({"date", "time", "date-time", "uuid", *(f"uuid{n}" for n in range(1, 6))})
_DAY = (
    r"(?:(?:000[1-9]|00[1-9]\d|0[1-9]\d{2}|[1-9]\d{3})"
    r"-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{3})?(?:Z|[+\-](?:[01]\d|2[0-3]):[0-5]\d)"
CALENDAR = {"date": f"^{_DAY}$", "date-time": f"^{_DAY}T{_TIME}$"}
"""Formats as patterns: llama.cpp lets every month have 31 days."""
_TYPES: Mapping[str, Callable[[object], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, Mapping),
}
_KEYWORDS: Mapping[str, frozenset[str]] = {  # of each type
    "object": _OBJECT | {"minProperties", "maxProperties", "patternProperties", "propertyNames", "dependentRequired"},
    "array": _ARRAY | {"contains", "minContains", "maxContains", "additionalItems"},
    "string": _STRING | {"contentEncoding", "contentMediaType"},
    "integer": _INTEGER | {"multipleOf"},
    "number": _INTEGER | {"multipleOf"},
}


class NotEnforced(ValueError):
    """A schema promises what the engine would not keep. The message names the keyword."""


def check_schema(root: Json) -> None:
    """Raises NotEnforced for a schema that answers might not meet."""
    left: list[object] = [root, *_definitions(root)]
    checked: set[int] = set()  # parts that are named by a reference, too
    while left:
        one = left.pop()
        if id(one) not in checked:
            checked.add(id(one))
            left += _checked(one, root)


def with_patterns(schema: object, *, strict: bool) -> object:
    """The schema with its patterns as llama.cpp enforces them. Raises UnsupportedPattern; if it is not `strict`, a
    pattern without a translation is left out."""
    if isinstance(schema, list):
        return [with_patterns(one, strict=strict) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = _both_bounds(schema)
    for name, one in schema.items():
        if name in _VALUES:
            made[name] = one
        elif name in _SCHEMAS_BY_NAME and isinstance(one, Mapping):
            made[name] = {key: with_patterns(value, strict=strict) for key, value in one.items()}
        elif name == "format" and isinstance(one, str) and one in CALENDAR and "pattern" not in schema:
            made["pattern"] = translated(CALENDAR[one])
        elif name != "pattern" or not isinstance(one, str):
            made[name] = with_patterns(one, strict=strict)
        else:
            try:
                made[name] = translated(one)
            except UnsupportedPattern:
                if strict:
                    raise
    return made


def _both_bounds(schema: Json) -> dict[str, object]:
    """The bound that an integer with the other one lacks. From one bound alone llama.cpp makes a wrong rule: 14 meets
    its `minimum` of 100, and -030 its `maximum` of -30."""
    kinds = schema.get("type")
    if kinds != "integer" and not (isinstance(kinds, list) and "integer" in kinds):
        return {}
    if schema.keys() & _LOW.keys():
        return {} if schema.keys() & _HIGH.keys() else {"maximum": _FARTHEST}
    return {"minimum": -_FARTHEST} if schema.keys() & _HIGH.keys() else {}


def with_plain_references(root: Json) -> Json:
    """The schema with references that llama.cpp tells apart.

    It calls a rule of its grammar after a reference, with "-" for all that is no ASCII letter or digit. So
    `#/$defs/Ä` and `#/$defs/Ö` would be one rule, that of the first.
    """
    named: dict[str, Json] = {}
    for ref in _references(root):
        with suppress(NotEnforced):
            named[ref] = _target(ref, root)
    if len({_NO_RULE_CHARACTER.sub("-", ref) for ref in named}) == len(named):
        return root
    plain = {ref: f"part{at}" for at, ref in enumerate(named)}
    parts = {name: _renamed(named[ref], plain) for ref, name in plain.items()}
    rest = _renamed({name: one for name, one in root.items() if name not in _FOLDERS}, plain)
    return {**(rest if isinstance(rest, Mapping) else {}), "$defs": parts}


def _references(root: Json) -> Iterator[str]:
    left: list[object] = [root]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            if isinstance(ref := one.get("$ref"), str):
                yield ref
            left += one.values()
        elif isinstance(one, list):
            left += one


def _renamed(of: object, plain: Mapping[str, str]) -> object:
    """A part of a schema with other names for what it refers to."""
    if isinstance(of, list):
        return [_renamed(one, plain) for one in of]
    if not isinstance(of, Mapping):
        return of
    ref = of.get("$ref")
    if isinstance(ref, str) and ref in plain:
        return {**of, "$ref": f"#/$defs/{plain[ref]}"}
    made: dict[str, object] = {}
    for name, one in of.items():
        if name in _SCHEMAS_BY_NAME and isinstance(one, Mapping):
            made[name] = {key: _renamed(value, plain) for key, value in one.items()}
        else:
            made[name] = one if name in _VALUES else _renamed(one, plain)
    return made


def _definitions(root: Json) -> Iterator[object]:
    for folder in _FOLDERS:
        if isinstance(found := root.get(folder), Mapping):
            yield from found.values()


def _checked(schema: object, root: Json) -> list[object]:
    """Check one level. Returns the schemas within."""
    if not isinstance(schema, Mapping):
        raise NotEnforced("true or false in place of a schema")
    if "$id" in schema and schema is not root:
        raise NotEnforced("$id below the top, from which references would begin")
    names = {name for name in schema if name not in _NOTES and not (name == "uniqueItems" and not schema[name])}
    if "$ref" in names:
        _only(names, {"$ref"}, "$ref")
        return [_target(schema["$ref"], root)]
    for union in ("anyOf", "oneOf"):
        if union in names:
            _only(names, {union}, union)
            parts = _choices(schema, union)
            if union == "oneOf" and not _apart(parts, root):
                raise NotEnforced("oneOf whose alternatives are not told apart by type, const or enum (anyOf is)")
            return parts
    for fixed in ("const", "enum"):
        if fixed in names:
            _only(names, {fixed, "type"}, fixed)
            values = [schema["const"]] if fixed == "const" else _choices(schema, "enum")
            if not all(any(_TYPES[kind](value) for kind in _types(schema)) for value in values):
                raise NotEnforced(f"{fixed} with a value that is not of its type")
            if not all(map(_is_exact, values)):
                raise NotEnforced(f"{fixed} with a number of so many digits, which it would round")
            return []
    return _of_types(schema, names)


def _is_exact(value: object) -> bool:
    """Would llama.cpp write this value as it is? It rounds integers beyond 64 bits."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**64 or (abs(value) < 1e300 and int(float(value)) == value)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return all(map(_is_exact, inner))


def _target(ref: object, root: Json) -> Json:
    """The schema that a reference names. llama.cpp takes each part as it is written, and has `$defs` at the top
    only."""
    if not isinstance(ref, str) or not ref.startswith("#/"):
        raise NotEnforced(f"$ref {str(ref)[:60]!r}, which does not begin with #/")
    found: object = root
    by_name = False  # is the next part a name, and no keyword?
    for at, part in enumerate(ref[2:].split("/")):
        if isinstance(found, Mapping) and part in found and (by_name or _leads_on(part, at)):
            found, by_name = found[part], not by_name and part in _SCHEMAS_BY_NAME
        elif isinstance(found, list) and part.isdecimal() and len(part) < 6 and int(part) < len(found):
            found, by_name = found[int(part)], False
        else:
            found = None
            break
    if by_name or not isinstance(found, Mapping):
        raise NotEnforced(f"$ref {ref[:60]!r}, which names no schema")
    return found


def _leads_on(keyword: str, at: int) -> bool:
    """Can a reference go through this keyword to a schema?"""
    return keyword not in _VALUES and (keyword != "$defs" or at == 0)


def _of_types(schema: Json, names: set[str]) -> list[object]:
    kinds = _types(schema) if "type" in names else _implied(names)
    if not kinds and (bounds := names & _KEYWORDS["number"]):
        raise NotEnforced(f"{min(bounds)} without a type")
    foreign = {name for kind, own in _KEYWORDS.items() if kind not in kinds for name in own}
    for kind in kinds:
        foreign -= _KEYWORDS.get(kind, frozenset())
    asked = names - foreign - {"type"}  # a keyword of another type says nothing
    for name in asked & _LENGTHS:
        if not isinstance(length := schema[name], int) or isinstance(length, bool) or length < 0:
            raise NotEnforced(f"{name} that is not a whole number from 0 on")
    allowed = frozenset[str]()
    inner: list[object] = []
    for kind in kinds:
        if kind == "object":
            allowed |= _OBJECT
            inner += _object(schema)
        elif kind == "array":
            allowed |= _ARRAY - {"uniqueItems"}
            inner += _array(schema)
        elif kind == "string":
            allowed |= _STRING
            _string(schema, asked & _STRING)
        elif kind == "integer":
            allowed |= _INTEGER
            _integer(schema)
    _only(asked, allowed, "type " + " or ".join(sorted(kinds)) if kinds else "no type")
    if "number" in kinds and asked & _INTEGER:
        raise NotEnforced(f"{min(asked & _INTEGER)} of a number (of an integer it is)")
    return inner


def _object(schema: Json) -> list[object]:
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise NotEnforced("properties that are not an object")
    if clash := properties.keys() & {"$ref", "$defs"}:
        raise NotEnforced(f"a property that is called {min(clash)}")
    for name in _listed(schema, "required"):
        if not isinstance(name, str) or name not in properties:
            raise NotEnforced(f"required {str(name)[:60]!r}, which is not in properties")
    more = schema.get("additionalProperties")
    return [*properties.values(), *([more] if isinstance(more, Mapping) else [])]


def _array(schema: Json) -> list[object]:
    first = schema.get("prefixItems", schema.get("items"))
    if "prefixItems" in schema and "items" in schema:
        raise NotEnforced("items beside prefixItems")
    least, most = schema.get("minItems"), schema.get("maxItems")
    if isinstance(first, list):
        if _number(least, 0) > len(first) or _number(most, len(first)) < len(first):
            raise NotEnforced("minItems or maxItems that are not the number of prefixItems")
        return first
    if first is None and (least or most is not None):
        raise NotEnforced("minItems or maxItems without items")
    return [] if first is None else [first]


def _string(schema: Json, names: set[str] | frozenset[str]) -> None:
    if "pattern" in names or "format" in names:
        ruling = "pattern" if "pattern" in names else "format"
        _only(set(names), {ruling}, ruling)
    if "type" not in schema and names & {"minLength", "maxLength"}:
        raise NotEnforced("minLength or maxLength without type string")
    if "format" in names and str(schema["format"]) not in _FORMATS:
        raise NotEnforced(f"format {str(schema['format'])[:60]!r} (enforced: {', '.join(sorted(_FORMATS))})")
    if "pattern" in names:
        if not isinstance(schema["pattern"], str):
            raise NotEnforced("pattern that is not a text")
        try:
            translated(schema["pattern"])
        except UnsupportedPattern as error:
            raise NotEnforced(f"pattern with {error}") from error


def _integer(schema: Json) -> None:
    bounds = [schema[name] for name in _INTEGER if name in schema]
    if any(isinstance(bound, bool) or not isinstance(bound, int) for bound in bounds):
        raise NotEnforced("a bound of an integer that is not a whole number")
    if {"minimum", "exclusiveMinimum"} <= schema.keys() or {"maximum", "exclusiveMaximum"} <= schema.keys():
        raise NotEnforced("a bound beside its exclusive form")
    low = [bound + exclusive for name, exclusive in _LOW.items() if isinstance(bound := schema.get(name), int)]
    high = [bound - exclusive for name, exclusive in _HIGH.items() if isinstance(bound := schema.get(name), int)]
    if low and high and low > high:
        raise NotEnforced("bounds that no integer meets")


def _types(schema: Json) -> list[str]:
    said = schema.get("type", list(_TYPES))
    kinds: list[str] = []
    for kind in said if isinstance(said, list) else [said]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise NotEnforced(f"type {str(kind)[:60]!r}")
        kinds.append(kind)
    if not kinds:
        raise NotEnforced("type without an entry")
    return kinds


def _implied(names: set[str]) -> list[str]:
    """The type that llama.cpp takes a schema without a type for."""
    return next(([kind] for kind in ("object", "array", "string") if names & _KEYWORDS[kind]), [])


def _apart(parts: list[object], root: Json) -> bool:
    """Can no value meet two of these schemas? True if each pair differs in type, in a value, or in a property's."""
    if len(parts) > _MOST_APART:
        raise NotEnforced(f"oneOf with more than {_MOST_APART} alternatives (anyOf is)")
    told = [_marks(part, root) for part in parts]
    return all(
        any(name in other and not (mine & other[name]) for name, mine in one.items())
        for at, one in enumerate(told)
        for other in told[:at]
    )


def _marks(schema: object, root: Json) -> dict[str, frozenset[str]]:
    """What a value of this schema can be, as far as that tells it apart: its types, its values, those of its
    required properties."""
    for _ in range(16):
        if not isinstance(schema, Mapping) or not isinstance(ref := schema.get("$ref"), str):
            break
        found: object = root
        for name in ref.removeprefix("#/").split("/"):
            found = found.get(name) if isinstance(found, Mapping) else None
        schema = found
    if not isinstance(schema, Mapping):
        return {}
    marks = _values(schema)
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, Mapping) and isinstance(required, list):
        for name in required:
            one = properties.get(name) if isinstance(name, str) else None
            if isinstance(one, Mapping) and (values := _values(one).get("")):
                marks[f"/{name}"] = values
    return marks


def _values(schema: Json) -> dict[str, frozenset[str]]:
    if "const" in schema:
        return {"": frozenset([_shown(schema["const"])])}
    if isinstance(values := schema.get("enum"), list):
        return {"": frozenset(map(_shown, values))}
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        said = [kinds] if isinstance(kinds, str) else kinds
        return {"type": frozenset("number" if kind == "integer" else str(kind) for kind in said)}
    return {}


def _shown(value: object) -> str:
    """The same text for values that JSON Schema takes for equal."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True)  # type: ignore[call-overload]  # a float then


def _only(names: set[str], allowed: set[str] | frozenset[str], beside: str) -> None:
    if more := names - allowed:
        raise NotEnforced(f"{min(more)} beside {beside}")


def _choices(schema: Json, name: str) -> list[object]:
    if not (said := _listed(schema, name)):
        raise NotEnforced(f"{name} without an entry")
    return said


def _listed(schema: Json, name: str) -> list[object]:
    said = schema.get(name, [])
    if not isinstance(said, list):
        raise NotEnforced(f"{name} that is not a list")
    return said


def _number(value: object, default: int) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default
