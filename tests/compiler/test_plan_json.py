"""The JSON Schema that other tools use matches the plans of this version."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from ramify.compiler.plan_json import plan_schema

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = Path(__file__).parent / "goldens"


def test_the_schema_in_the_documentation_is_current() -> None:
    """`ramify compile FILE.py:NAME --emit schema -o docs/plan.schema.json` writes it anew."""
    assert (ROOT / "docs" / "plan.schema.json").read_text(encoding="utf-8") == plan_schema()


def test_plans_match_the_schema() -> None:
    schema = json.loads(plan_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    for name in ("repair", "coder"):
        jsonschema.validate(json.loads((GOLDENS / f"{name}.plan.json").read_text(encoding="utf-8")), schema)


@pytest.mark.parametrize(
    ("key", "value"), [("version", 2), ("deadline_s", "soon"), ("ops", [{"id": "x"}]), ("extra", 1)]
)
def test_invalid_plans_do_not_match_the_schema(key: str, value: object) -> None:
    plan = json.loads((GOLDENS / "repair.plan.json").read_text(encoding="utf-8"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**plan, key: value}, json.loads(plan_schema()))
