"""Runs with a step under another decorator, which is changed before they are resumed: nothing is done twice."""

from __future__ import annotations

import pytest

from ramify.runtime.errors import WorkflowChanged
from tests.runtime.execution.edited_code.files import App

WRAPS = """
import functools
def tried(of):
    @functools.wraps(of)
    async def inner(*args):
        return await of(*args)
    return inner
"""
UPDATED = """
import functools
class tried:
    def __init__(self, of):
        functools.update_wrapper(self, of)
        self.of = of
    async def __call__(self, *args):
        return await self.of(*args)
"""
UNMARKED = WRAPS.replace("wraps(of)", "wraps(of, updated=())")
STEP = """
@tried
@step(effect="irreversible")
async def send(to):
    log(f"send {to}")
    return f"sent {to}"

@workflow
async def flow():
    one = await send("a")
    await die()
    return [one, await send("b")]
"""
ASSIGNED = (
    STEP.replace("@tried\n", "")
    .replace("async def send", "async def _send")
    .replace("\n@workflow", "send = tried(_send)\n\n@workflow")
)
ONCE = ["send a", "send b"]


@pytest.mark.parametrize("decorator", [WRAPS, UPDATED, UNMARKED], ids=["wraps", "update_wrapper", "unmarked"])
@pytest.mark.parametrize("rest", [STEP, ASSIGNED], ids=["decorated", "assigned"])
async def test_what_wraps_a_step_is_code_of_the_workflow(app: App, decorator: str, rest: str) -> None:
    text = decorator + rest
    await app.begin(text)
    removed = text.replace("@tried\n", "").replace("tried(_send)", "_send")
    doubled = text.replace("        return await", "        await asyncio.sleep(0)\n        return await")
    for edited in (removed, doubled):
        for accept in (False, True):
            with pytest.raises(WorkflowChanged):
                await app.resume(edited, accept_changes=accept)
    assert app.log == ONCE[:1]
    mended = text.replace("    log(f", "    assert to\n    log(f")
    assert await app.resume("# moved\n" + mended) == ["sent a", "sent b"]
    assert app.log == ONCE


async def test_a_decorator_that_is_put_around_a_step(app: App) -> None:
    text = WRAPS + STEP
    await app.begin(text.replace("@tried\n", ""))
    with pytest.raises(WorkflowChanged, match="decorated"):
        await app.resume(text)
    assert app.log == ONCE[:1]


async def test_a_step_of_another_name_is_told(app: App) -> None:
    """The statement that makes the step is not code of the workflow; its name is."""
    text = """
async def _send(to):
    log(f"send {to}")
send = step(effect="irreversible", name="first")(_send)
@workflow
async def flow():
    await send("a")
    await die()
"""
    await app.begin(text)
    with pytest.raises(WorkflowChanged, match=r"step first was removed, step second is new \(.*edited_code.py:\d+\)"):
        await app.resume(text.replace("first", "second"))
    assert app.log == ONCE[:1]
