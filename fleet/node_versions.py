"""Whether a node has the versions of Ramify and Python that this program has, and its time."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from typing import Any

import ramify
from ramify.fleet.errors import NodeUnfit
from ramify.fleet.types import HostFacts, Node

MOST_CLOCK_S = 60.0
"""Seconds by which a node's clock may differ: `ramify.sleep` and the times in `ramify log` go by it."""


def checked(node: Node, told: Mapping[str, Any], asked_at: float | None = None) -> HostFacts:
    """Raises `NodeUnfit` for a node with another version of Ramify, another minor version of Python, or a clock that
    is off. asked_at: by this machine's clock."""
    here = (ramify.__version__, platform.python_version())
    there = (str(told.get("version")), str(told.get("python")))
    if there[0] != here[0]:
        raise NodeUnfit(
            node.name, f"it has Ramify {there[0]}, and this program {here[0]}: install ramify[ray]=={here[0]} there"
        )
    if _minor(there[1]) != _minor(here[1]):
        raise NodeUnfit(
            node.name,
            f"it has Python {there[1]}, and this program {here[1]}: start Ray there with Python {_minor(here[1])}",
        )
    facts = HostFacts(**told)
    if facts.clock is not None and asked_at is not None:
        ahead = max(facts.clock - time.time(), 0.0) + min(facts.clock - asked_at, 0.0)  # the answer took its time
        if abs(ahead) > MOST_CLOCK_S:
            which = "ahead of" if ahead > 0 else "behind"
            raise NodeUnfit(
                node.name,
                f"its clock is {abs(ahead):.0f} s {which} this program's: set the one that is wrong (timedatectl)",
            )
    return facts


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def why_not_started(why: str) -> str:
    missing = "No module named 'ramify" in why
    if missing:
        return f"Ramify is not installed there, or is too old: install ramify[ray]=={ramify.__version__} there"
    return f"the fleet's process did not start there: {why}"
