"""Tools that use the world of the step that calls them, and ways to call them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import worldless_paths

TOOLS = {"path": worldless_paths.path_of_world}
path_later = functools.partial(worldless_paths.path_of_world)
path_of_world = worldless_paths.path_of_world


@dataclass
class Task:
    number: int

    async def work(self) -> str:
        return await path_of_world()
