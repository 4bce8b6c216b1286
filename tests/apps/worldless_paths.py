"""The one place that asks for a step's world."""

from __future__ import annotations

from ramify import current_sandbox


async def path_of_world() -> str:
    return current_sandbox().path.name
