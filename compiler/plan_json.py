"""Plans as JSON: reading one, and the JSON Schema for other tools (docs/plan.schema.json).

Both follow the dataclasses of `plan`. Reading also checks that names refer to something. Every error names the key,
as in `plan.ops[3].kind`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from ramify.compiler.plan import PLACES_VERSION, PLAN_VERSION, STEPS, OpKind, Plan, PlanError, PlanOp

WITHOUT_CODE = 3  # plans of this version do not state the code that they were compiled from
OLDER = (4, 5, 6, 7, 8, 9)  # plans of these state only a part of it; they keep their version


def read_plan(text: str) -> Plan:
    """Read a plan of this version, or of one that is still supported.

    Raises:
        PlanError: The text is no valid plan.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"plan: not JSON ({error}); write it with `ramify compile --emit plan`") from error
    version = data.get("version") if isinstance(data, dict) else None
    if version == WITHOUT_CODE:
        data |= {"version": version + 2, "code": []}
    elif version not in (*OLDER, PLAN_VERSION):
        raise PlanError(
            f"plan.version: {version!r}, and this ramify reads {PLAN_VERSION}; compile the workflow again"
        )
    if version < PLAN_VERSION:
        _add_missing_keys(data, version)
    plan: Plan = _decode(Plan, data, "plan")
    _check_names(plan)
    return plan


def _add_missing_keys(data: dict[str, Any], version: int) -> None:
    """Add the keys that an older plan does not have, with empty values."""
    for step in data["steps"] if isinstance(data.get("steps"), list) else ():
        if isinstance(step, dict):
            step.setdefault("parameters", [])
    if version >= PLACES_VERSION:
        return
    data.setdefault("places", 0)
    data.setdefault("patches", [])
    data.setdefault("files", [])
    for op in data["ops"] if isinstance(data.get("ops"), list) else ():
        if isinstance(op, dict):
            op.setdefault("origin", None)


def _decode(hint: Any, value: object, path: str) -> Any:
    """Return a JSON value as its annotation states. Typed Any, since the annotation is only known at run time."""
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):  # a plan has only `X | None`
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        return None if value is None else _decode(inner, value, path)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, path)
    if origin is Mapping:
        return _expect(dict, value, path)
    if dataclasses.is_dataclass(hint):
        return _decode_object(hint, value, path)
    if issubclass(hint, Enum):
        if value not in {member.value for member in hint}:
            raise PlanError(f"{path}: {value!r} is not one of {', '.join(str(member.value) for member in hint)}")
        return hint(value)
    if hint is float and type(value) is int:
        return float(value)
    return _expect(hint, value, path)


def _decode_tuple(args: tuple[Any, ...], value: object, path: str) -> tuple[Any, ...]:
    items = _expect(list, value, path)
    if args[-1] is Ellipsis:
        hints = (args[0],) * len(items)
    elif len(items) == len(args):
        hints = args
    else:
        raise PlanError(f"{path}: a list of {len(args)} is expected, not of {len(items)}")
    return tuple(_decode(hint, item, f"{path}[{i}]") for i, (hint, item) in enumerate(zip(hints, items, strict=True)))


def _decode_object(cls: Any, value: object, path: str) -> Any:
    given = _expect(dict, value, path)
    fields = {field.name for field in dataclasses.fields(cls)}
    for key in sorted(fields - given.keys()):
        raise PlanError(f"{path}.{key}: the key is missing")
    for key in sorted(given.keys() - fields):
        raise PlanError(f"{path}.{key}: no such key; known are {', '.join(sorted(fields))}")
    hints = _hints_of(cls)
    return cls(**{key: _decode(hints[key], item, f"{path}.{key}") for key, item in given.items()})


@functools.cache
def _hints_of(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _expect(kind: type, value: object, path: str) -> Any:
    if type(value) is not kind:
        names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a whole number"}
        raise PlanError(f"{path}: {names.get(kind, 'a number')} is expected, not {value!r}")
    return value


def _check_names(plan: Plan) -> None:
    """Check that each name of an operation, a step or a block refers to one in the plan."""
    ops: dict[str, PlanOp] = {}
    for i, op in enumerate(plan.ops):
        if op.id in ops:
            raise PlanError(f"plan.ops[{i}].id: {op.id!r} occurs twice")
        ops[op.id] = op
    for i, op in enumerate(plan.ops):
        if op.kind in STEPS and plan.step(op.step or "") is None:
            raise PlanError(f"plan.ops[{i}].step: {op.step!r} is not in plan.steps")
        fork = op.attrs.get("fork")
        if fork is not None and not (isinstance(fork, str) and fork in ops and ops[fork].kind is OpKind.FORK):
            raise PlanError(f"plan.ops[{i}].attrs.fork: {fork!r} is no FORK in plan.ops")
    blocks = {block.id: block for block in plan.blocks}
    for i, block in enumerate(plan.blocks):
        for j, (to, worlds) in enumerate(block.exits):
            if to not in blocks:
                raise PlanError(f"plan.blocks[{i}].exits[{j}][0]: no block {to!r}")
            if len(worlds) != len(blocks[to].params):
                wanted = len(blocks[to].params)
                raise PlanError(f"plan.blocks[{i}].exits[{j}][1]: {to} takes {wanted} worlds, not {len(worlds)}")
    for i, graph_break in enumerate(plan.breaks):
        if graph_break.op not in ops or ops[graph_break.op].kind is not OpKind.BREAK:
            raise PlanError(f"plan.breaks[{i}].op: {graph_break.op!r} is no BREAK in plan.ops")
    if not plan.breaks or plan.catch_all.site is not None:
        raise PlanError("plan.breaks[0]: the first break must be the catch-all, whose operation has no site")


# JSON Schema

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number"}


def plan_schema() -> str:
    """Return the JSON Schema of a plan, as text.

    A schema cannot express that names refer to something, such as the block of an exit; `Plan.from_json` checks that.
    """
    defined: dict[str, object] = {}
    _schema_of(Plan, defined)
    plan: Any = defined.pop("Plan")
    plan["properties"]["version"] = {"const": PLAN_VERSION}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A plan of Ramify"}
    return json.dumps({**head, **plan, "$defs": defined}, indent=2) + "\n"


def _schema_of(hint: Any, defined: dict[str, object]) -> dict[str, object]:
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if arg is type(None) else _schema_of(arg, defined) for arg in args]}
    if origin is tuple and args[-1] is Ellipsis:
        return {"type": "array", "items": _schema_of(args[0], defined)}
    if origin is tuple:
        items = [_schema_of(arg, defined) for arg in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is Mapping:
        return {"type": "object"}
    if dataclasses.is_dataclass(hint):
        return _object_schema(hint, defined)
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return {"type": _PLAIN[hint]}


def _object_schema(hint: Any, defined: dict[str, object]) -> dict[str, object]:
    if hint.__name__ not in defined:
        defined[hint.__name__] = {}  # reserves its place, in the order of first use
        hints = get_type_hints(hint)
        names = [field.name for field in dataclasses.fields(hint)]
        defined[hint.__name__] = {
            "type": "object",
            "properties": {name: _schema_of(hints[name], defined) for name in names},
            "required": names,
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{hint.__name__}"}
