"""`patched`: code that branches on its own version."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.compiler.plan import OpKind
from ramify.runtime.errors import (
    StepFailed,
)
from tests.runtime.execution.edited_code.files import App

PATCHED = """
@workflow
async def flow():
    ada = await next_id()
    {}await die()
    {}bob = await next_id()
    return [ada, bob]
"""
BLOCK = "if ramify.patched('{}'):\n        await extra('{}')\n    "


async def test_a_patch_applies_to_runs_that_reach_it_anew(app: App) -> None:
    await app.begin(PATCHED.format("", "").replace("await die()", "await look()\n    await die()"))
    text = PATCHED.format(BLOCK.format("one", "passed"), BLOCK.format("two", "new"))
    text = text.replace("await die()", "await look()\n    await die()")
    assert await app.resume(text) == [1, 2]
    assert app.log == ["id", "look", "extra", "id"]
    said = [row.summary for row in await app.runtime.journal() if row.kind is OpKind.CHANGE]
    assert said == ["patched: one, two", "patched('one'): the old code", "patched('two'): the new code"]


@pytest.mark.parametrize(
    "test",
    [
        "if ramify.patched('p'):\n        x = 1\n    else:\n        {}",
        "if not ramify.patched('p'):\n        {}\n    else:\n        x = 1",
    ],
)
async def test_the_old_code_is_in_the_else_branch(app: App, test: str) -> None:
    flow = "@workflow\nasync def flow():\n    {}\n    await look()\n    await die()\n    return x\n"
    await app.begin(flow.format("x = await next_id()"))
    assert await app.resume(flow.format(test.format("x = await next_id()"))) == 1
    assert app.log == ["id", "look"]


async def test_a_patch_is_answered_alike_after_a_crash_and_in_branches(app: App) -> None:
    flow = (
        "@step(effect='pure')\nasync def each(text):\n    return text\n\n@workflow\nasync def flow():\n"
        "    said = [ramify.patched('p')]\n    await extra('x')\n    async with fork([1, 2]) as branches:\n"
        "        for branch in branches:\n            async with branch.enter():\n"
        "                said.append(ramify.patched('p'))\n    await die()\n    said.append(ramify.patched('p'))\n"
        "    return said\n"
    )
    await app.begin(flow)
    assert await app.resume(flow) == [True] * 4


def test_patched_in_a_workflow_that_is_not_async(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAMIFY_SANDBOX", "copy")
    import edited_plain

    assert edited_plain.flow.invoke() == [True, "x"]
    with pytest.raises(StepFailed, match="patched"):
        edited_plain.wrong.invoke()
