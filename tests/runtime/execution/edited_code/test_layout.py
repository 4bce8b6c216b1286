"""Runs whose code is moved, reformatted or renamed before they are resumed: nothing is repeated or swapped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramify.runtime.errors import (
    RunWaiting,
    WorkflowChanged,
)
from tests.runtime.execution.edited_code.files import DONE, ONCE, THREE, App


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: "# a comment\n" + text,
        lambda text: "\n\n" + text,
        lambda text: text.replace("    bob =", "    # a comment\n    bob ="),
        lambda text: text.replace("    ada =", "\n    # two\n    # lines\n    ada ="),
        lambda text: text.replace('[await pay("a"), await pay("b")]', "[\n  await pay('a'),\n  await pay('b'),\n ]"),
        lambda text: text.replace("await next_id()", "(\n        await next_id()\n    )"),
        lambda text: text.replace("ada", "zoe").replace("bob", "abe"),
        lambda text: "def unused():\n    return 1\n" + text + "\ndef other():\n    pass\n",
    ],
)
async def test_a_shifted_line_repeats_nothing_and_swaps_nothing(app: App, edit: Callable[[str], str]) -> None:
    await app.begin(THREE)
    assert await app.resume(edit(THREE)) == DONE
    assert app.log == ONCE


async def test_a_longer_step_moves_the_workflow_down(app: App) -> None:
    await app.begin(
        "@step\nasync def mine():\n    if FLAG.exists():\n        raise OSError\n" + THREE.replace("die()", "mine()")
    )
    text = "@step\nasync def mine():\n    a = 1\n    b = 2\n    return None\n" + THREE.replace("die()", "mine()")
    assert await app.resume(text) == DONE
    assert app.log == ONCE


HELPED = """
from edited_code_helpers import two

@workflow
async def flow():
    ada, bob = await two()
    await die()
    return [ada, bob]
"""
LATE = """
async def two():
    from edited_code import next_id
    one = await next_id()
    other = await next_id()
    return one, other
"""
EARLY = """
import edited_code

async def two():
    one = await edited_code.next_id()
    other = await edited_code.next_id()
    return one, other
"""


async def test_a_helper_of_another_module_is_edited(app: App) -> None:
    for text in (LATE, EARLY):
        (app.folder / "flag").touch()
        (app.folder / "log").write_text("")
        await app.begin(HELPED, text)
        assert await app.resume(
            "# one\n" + HELPED, "\n# more\n\n" + text.replace("    other =", "\n    other =")
        ) == [1, 2]
        assert app.log == ["id", "id"]


async def test_an_open_question_and_one_under_a_graph_break(app: App) -> None:
    text = (
        "async def through(of):\n    await pay('x')\n    return await of('go on?')\n\n@workflow\nasync def flow():\n"
        "    one = await next_id()\n    said = await through(interrupt)\n    await die()\n    return [one, said]\n"
    )
    await app.begin(text, error=RunWaiting)
    assert await app.resume("# a\n" + text.replace("    said", "    # b\n    said"), answer="yes") == [1, "yes"]
    assert app.log == ["id", "pay x"]


async def test_a_fork_of_a_run_continues_with_shifted_code(app: App) -> None:
    text = THREE.replace("    await die()", "    await save()\n    await die()")
    saves = "@step\nasync def save(sandbox: Sandbox):\n    (sandbox.path / 'x').write_text('x')\n"
    await app.begin(saves + text)
    last = (await app.runtime.store.checkpoints(app.runtime.last_run_id))[-1]  # type: ignore[arg-type]
    app.load("# a comment\n" + saves + text)
    forked = await app.runtime.fork(last.id)
    assert await app.runtime.resume(forked.id) == DONE
    assert app.log == ONCE


async def test_two_helpers_that_swap_places_keep_their_results(app: App) -> None:
    """Each at the very lines where the other one was."""
    ones = "async def f():\n    return await next_id()\n"
    others = "async def g():\n    return await next_id()\n"
    flow = "@workflow\nasync def flow():\n    ada = await f()\n    bob = await g()\n"
    flow += "    await die()\n    return [ada, bob]\n"
    await app.begin(ones + others + flow)
    assert await app.resume(others + ones + flow) == [1, 2]
    assert app.log == ["id", "id"]


async def test_bodies_that_are_exchanged_between_modules_are_a_change(app: App) -> None:
    flow = (
        "from edited_code_helpers import one\n\nasync def two():\n    return await look()\n\n"
        "@workflow\nasync def flow():\n    a = await one()\n    b = await two()\n    await die()\n    return [a, b]\n"
    )
    helpers = "async def one():\n    import edited_code\n    return await edited_code.next_id()\n"
    await app.begin(flow, helpers)
    with pytest.raises(WorkflowChanged):
        await app.resume(
            flow.replace("await look()", "await next_id()"),
            helpers.replace("edited_code.next_id", "edited_code.look"),
        )


async def test_the_error_for_changed_code_says_how_to_continue(app: App) -> None:
    await app.begin(THREE)
    run = app.runtime.last_run_id
    with pytest.raises(WorkflowChanged, match=f"`ramify resume {run} --show-changes`.*`--accept-changes`"):
        await app.resume(THREE.replace("    bob =", "    await extra('x')\n    bob ="))
