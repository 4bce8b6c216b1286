"""The JSON Schema of a plan, made from the dataclasses that it is: docs/plan.schema.json holds it for other tools."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from ramify.compiler.plan import PLAN_VERSION, Plan

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number"}


def plan_schema() -> str:
    """As text. That names meet (an exit's block, a RUN's step) is beyond a schema: `Plan.from_json` checks it."""
    defined: dict[str, object] = {}
    _of(Plan, defined)
    plan: Any = defined.pop("Plan")
    plan["properties"]["version"] = {"const": PLAN_VERSION}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A plan of Ramify"}
    return json.dumps({**head, **plan, "$defs": defined}, indent=2) + "\n"


def _of(hint: Any, defined: dict[str, object]) -> dict[str, object]:
    """Any, as the hint is only known when it runs."""
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if arg is type(None) else _of(arg, defined) for arg in args]}
    if origin is tuple and args[-1] is Ellipsis:
        return {"type": "array", "items": _of(args[0], defined)}
    if origin is tuple:
        items = [_of(arg, defined) for arg in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is Mapping:
        return {"type": "object"}
    if dataclasses.is_dataclass(hint):
        return _object(hint, defined)
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return {"type": _PLAIN[hint]}


def _object(hint: Any, defined: dict[str, object]) -> dict[str, object]:
    if hint.__name__ not in defined:
        defined[hint.__name__] = {}  # its place, in the order of first use
        hints = get_type_hints(hint)
        names = [field.name for field in dataclasses.fields(hint)]
        defined[hint.__name__] = {
            "type": "object",
            "properties": {name: _of(hints[name], defined) for name in names},
            "required": names,
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{hint.__name__}"}
