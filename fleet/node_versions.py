"""Whether a node has the versions of Ramify and Python that this program has."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import ramify
from ramify.fleet.errors import NodeUnfit
from ramify.fleet.types import HostFacts, Node


def checked(node: Node, told: Mapping[str, Any]) -> HostFacts:
    """Raises `NodeUnfit` for a node with another version of Ramify, or another minor version of Python."""
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
    return HostFacts(**told)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def why_not_started(why: str) -> str:
    missing = "No module named 'ramify" in why
    if missing:
        return f"Ramify is not installed there, or is too old: install ramify[ray]=={ramify.__version__} there"
    return f"the fleet's process did not start there: {why}"
