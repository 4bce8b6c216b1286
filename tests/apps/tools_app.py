"""A workflow whose model calls tools, by name and arguments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ramify import Sandbox, tool, workflow


@tool
async def write(sandbox: Sandbox, path: str, times: Annotated[int, Field(ge=1, description="how often")] = 1) -> str:
    """Write a file."""
    (sandbox.path / path).write_text("x" * times)
    return f"wrote {path}"


@tool(effect="readonly", name="list")
def names(sandbox: Sandbox, order: Literal["up", "down"] = "up") -> list[str]:
    """List the files."""
    return sorted((path.name for path in sandbox.path.iterdir()), reverse=order == "down")


TOOLS = {one.name: one for one in (write, names)}


@workflow
async def acts(calls: list[tuple[str, str]]) -> list[object]:
    first = await write.call('{"path": "first"}')
    return [first, *[await TOOLS[name].call(arguments) for name, arguments in calls]]
