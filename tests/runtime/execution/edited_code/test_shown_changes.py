"""What is shown of a change of the code before it is accepted is what happens then (`resume_as_shown` checks it)."""

from __future__ import annotations

import pytest

from ramify.runtime.errors import Diverged, EffectNotMet, RunFailed
from tests.runtime.execution.edited_code.files import App

FLOW = """
@step(effect="pure")
async def name(text):
    log(f"name {text}")
    return text

@step
async def write(sandbox: Sandbox, text):
    (sandbox.path / text).write_text(text)
    log(f"write {text}")

@step
async def send(text):
    log(f"send {text}")

@workflow
async def flow():
"""
DIE = "    await die()\n"
NAMED = "    who = await name('a')\n"


@pytest.mark.parametrize(
    ("before", "after", "case", "error"),
    [
        ("{n}    await pay(who)\n{d}", "{m}    await pay(who)\n{d}", "refused if", EffectNotMet),
        ("{n}    await send(who)\n{d}", "{m}    await send(who)\n{d}", "refused if", Diverged),
        ("{n}    await write(who)\n{d}", "{m}    await write(who)\n{d}", "runs again if", None),
        ("{n}    await name(who + who)\n{d}", "{m}    await name(who + who)\n{d}", "runs again if", None),
        ("    await pay('a')\n{d}", "    await write('x')\n    await pay('a')\n{d}", "another state", Diverged),
        ("    await send('a')\n{d}", "    await write('x')\n    await send('a')\n{d}", "another state", Diverged),
        ("    await pay('a')\n{d}", "    await name('x')\n    await pay('a')\n{d}", "refused if", None),
        (
            "    x = await pay('a')\n{d}    y = await pay('a')\n",
            "{d}    y = await pay('a')\n",
            "another call of the step gets its arguments",
            EffectNotMet,
        ),
        (
            "{n}    if who == 'a':\n        x = await pay('a')\n    else:\n        y = await pay('a')\n{d}",
            "{m}    if who == 'a':\n        x = await pay('a')\n    else:\n        y = await pay('a')\n{d}",
            "another call gets its arguments first",
            EffectNotMet,
        ),
        (
            "{n}    async with fork([who, 'c']) as tried:\n        await tried.map(write)\n{d}",
            "{m}    async with fork([who, 'c']) as tried:\n        await tried.map(write)\n{d}",
            "runs again if",
            None,
        ),
    ],
)
async def test_cases_that_only_the_run_finds_out_are_shown(
    app: App, before: str, after: str, case: str, error: type[Exception] | None
) -> None:
    texts = [FLOW + body.format(n=NAMED, m=NAMED.replace("'a'", "'b'"), d=DIE) for body in (before, after)]
    await app.begin(texts[0])
    lines = [*(shown := await app.changes(texts[1])).kept, *shown.aside]
    assert any(case in line for line in lines), str(shown)
    if error is None:
        await app.resume(texts[1], accept_changes=True)
    else:
        for _ in "ab":  # also once it was accepted
            with pytest.raises(RunFailed) as raised:
                await app.resume(texts[1], accept_changes=True)
            assert isinstance(raised.value.__cause__, error)
    effects = [line for line in app.log if line.startswith(("pay", "send"))]
    assert len(effects) == len(set(effects))


async def test_a_call_in_front_of_the_change_stays_in_every_case(app: App) -> None:
    await app.begin(FLOW + "    await pay('a')\n" + DIE)
    (line,) = (await app.changes(FLOW + "    await pay('a')\n    await name('x')\n" + DIE)).kept
    assert line.startswith("pay at ")
    assert " if " not in line


@pytest.mark.parametrize(("step", "case"), [("pay", "refused if"), ("look", "runs again if")])
async def test_a_step_with_another_body_is_shown_though_the_workflow_is_the_same(
    app: App, step: str, case: str
) -> None:
    own = "@step(effect={})\nasync def mended(text):\n    log('mended')\n    return {}\n"
    effect = "'irreversible'" if step == "pay" else "'pure'"
    flow = "\n@workflow\nasync def flow():\n    await mended('a')\n" + DIE
    await app.begin(own.format(effect, "text") + flow)
    after = own.format(effect, "text.strip()") + flow
    (line,) = (await app.changes(after)).kept
    assert f"{case} its parameters have changed" in line
    await app.resume(after)
    assert app.log == ["mended"]
