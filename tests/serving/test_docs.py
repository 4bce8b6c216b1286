"""The pages about serving name every tag and policy that exists, and no metric that does not."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from ramify.serving.gateway.records.metrics import EngineCosts, Metrics
from ramify.serving.policy.registry import POLICIES
from ramify.serving.protocol.tags import SLOTags

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "\n".join((DOCS / page).read_text("utf-8") for page in ("serving.md", "reference/serving.md"))


def test_every_tag_and_every_policy_is_in_it() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w[\w-]*)`", row.split("|")[1])}
    assert named == {field.name for field in fields(SLOTags)} | set(POLICIES)


def test_every_metric_in_it_is_one() -> None:
    registry = Metrics().registry
    EngineCosts({}, registry)
    there = {sample for family in registry.collect() for sample in (family.name, f"{family.name}_total")}
    named = set(re.findall(r"`(ramify_\w+)`", TEXT))
    assert named and named <= there
