"""Tools: a model's schema, a model's arguments, and a step behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tools_app as app

from ramify import Runtime, Sandbox, tool
from ramify.compiler.plan import Effect, OpKind
from ramify.runtime.errors import BadArguments, NotInARun, RunFailed
from tests.plans import compile_plan


def test_schema_omits_the_sandbox() -> None:
    assert app.write.schema == {
        "type": "function",
        "function": {
            "name": "write",
            "description": "Write a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "times": {"type": "integer", "minimum": 1, "description": "how often", "default": 1},
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    }
    assert app.names.schema["function"]["name"] == "list"
    assert app.names.__ramify_step__.effect is Effect.READONLY


async def test_tool_call_runs_a_step(runtime: Runtime, workspace: Path) -> None:
    calls = [("write", '{"path": "b", "times": 2}'), ("list", '{"order": "down"}')]
    found = await runtime.run(app.acts, calls, workspace=workspace)
    assert found == ["wrote first", "wrote b", ["hello.txt", "first", "b"]]
    rows = [row for row in await runtime.journal() if row.kind is OpKind.RUN]
    assert [row.step for row in rows] == ["write", "write", "list"]
    seen = compile_plan(app.acts).op(rows[0].op_id)  # the one that the compiler sees
    assert (seen.kind, seen.step) == (OpKind.RUN, "write")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ('{"path": "b", "times": 0}', "times: .*greater than or equal to 1"),
        ('{"times": 1}', "path: Field required"),
        ('{"path": "b", "mode": "w"}', "mode: Extra inputs"),
        ("not json", "arguments: Invalid JSON"),
    ],
)
async def test_wrong_arguments_start_no_step(arguments: str, named: str, runtime: Runtime) -> None:
    with pytest.raises(RunFailed, match=named) as caught:
        await runtime.run(app.acts, [("write", arguments)])
    assert isinstance(caught.value.__cause__, BadArguments)
    assert [row.step for row in await runtime.journal() if row.kind is OpKind.RUN] == ["write"]


def test_functions_that_cannot_be_tools() -> None:
    async def silent(sandbox: Sandbox, path: str) -> None: ...

    async def untyped(sandbox: Sandbox, path) -> None:  # type: ignore[no-untyped-def]
        """Do it."""

    async def many(*paths: str) -> None:
        """Do it."""

    for function, named in ((silent, "docstring"), (untyped, "'path'"), (many, "'paths'")):
        with pytest.raises(TypeError, match=named):
            tool(function)


def test_tool_call_outside_a_run_is_refused() -> None:
    given: Any = {"path": "x"}
    with pytest.raises(NotInARun):
        app.write.call(given)
