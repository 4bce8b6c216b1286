"""Runs whose steps get parameters of other names before they are resumed: no finished call runs again."""

from __future__ import annotations

import pytest

from ramify.compiler.plan import Plan
from ramify.runtime.errors import EffectNotMet, RunFailed, StepFailed
from ramify.runtime.records import RunId
from tests.runtime.execution.edited_code.files import App

CALC = '@step{}\nasync def calc({}):\n    log(f"calc {{{}}}")\n    return {}\n'
ONE = "\n@workflow\nasync def flow():\n    one = await calc({})\n    await die()\n    return one\n"
LOOP = """
@workflow
async def flow():
    found = []
    for number in [1, 1, 2, 3]:
        if number > 1:
            await stop_at(number)
        found.append(await calc(number))
    return found

@step
async def stop_at(number):
    if FLAG.exists() and number >= int(FLAG.read_text() or 2):
        raise OSError("the flag is there")
"""


def calc(parameters: str, shown: str, declared: str = "") -> str:
    return CALC.format(declared, parameters, shown, shown)


@pytest.mark.parametrize("declared", ["", "(effect='pure')", "(effect='irreversible')"])
@pytest.mark.parametrize(
    ("then", "now", "given"),
    [
        ("x", "z", "1"),
        ("x", "z, more='m'", "1"),
        ("x", "z, *, more='m', other=2", "1"),
        ("x, y=2", "z, w=2", "1"),
        ("x, y=2", "x, w=2", "1, 3"),
        ("x, y", "z, w, v=1", "1, 3"),
        ("x, *, y=2", "z, *, y=2", "1, y=3"),
        ("x, /, *rest, **named", "z, /, *rest, **named", "1, 2, y=3"),
        ("x, *rest, **named", "z, *others, **given", "1, 2, y=3"),
        ("x, *, y=2", "z, *, w=2, more='m'", "1"),
    ],
)
async def test_a_renamed_parameter_repeats_nothing(app: App, then: str, now: str, given: str, declared: str) -> None:
    await app.begin(calc(then, "x", declared) + ONE.format(given))
    assert await app.resume(calc(now, now[0], declared) + ONE.format(given)) == 1
    assert app.log == ["calc 1"]


@pytest.mark.parametrize("now", ["box: Sandbox, z", "z, box: Sandbox", "z, other: Sandbox"])
async def test_a_sandbox_is_no_parameter_of_the_journal(app: App, now: str) -> None:
    await app.begin(calc("box: Sandbox, x", "x") + ONE.format("1"))
    assert await app.resume(calc(now, "z") + ONE.format("1")) == 1
    assert app.log == ["calc 1"]


@pytest.mark.parametrize("declared", ["", "(effect='irreversible')"])
@pytest.mark.parametrize("last", ["y", "x", "z"])
async def test_calls_before_and_after_a_renaming_are_found_after_the_next(app: App, last: str, declared: str) -> None:
    """Two calls are recorded under the first name, one under the second, and all are found under the third."""
    await app.begin(calc("x", "x", declared) + LOOP)
    (app.folder / "flag").write_text("3")
    with pytest.raises(StepFailed):
        await app.resume(calc("z", "z", declared) + LOOP)
    assert app.log == ["calc 1", "calc 1", "calc 2"]
    (app.folder / "flag").unlink()
    assert await app.resume(calc(last, last, declared) + LOOP) == [1, 1, 2, 3]
    assert app.log == ["calc 1", "calc 1", "calc 2", "calc 3"]


async def test_a_renaming_after_an_accepted_change(app: App) -> None:
    """The plan that replaces the run's own keeps the names by which the calls were recorded."""
    await app.begin(calc("x", "x") + ONE.format("1"))
    (app.folder / "flag").touch()
    longer = ONE.replace("    await die()", "    await extra('new')\n    await die()")
    with pytest.raises(StepFailed):
        await app.resume(calc("z", "z") + longer.format("1"), accept_changes=True)
    plan = Plan.from_json((await app.runtime.record()).plan_json)
    assert {step.name: step.parameters for step in plan.steps} == {"calc": ("x",), "extra": ("text",), "die": ()}
    (app.folder / "flag").unlink()
    assert await app.resume(calc("y", "y") + longer.format("1")) == 1
    assert app.log == ["calc 1", "extra"]


async def test_a_renaming_together_with_a_patch(app: App) -> None:
    await app.begin(calc("x", "x") + ONE.format("1"))
    (app.folder / "flag").touch()
    patched = ONE.replace(
        "    await die()", "    if ramify.patched('p'):\n        await extra('new')\n    await die()"
    )
    for name in ("z", "y"):
        with pytest.raises(StepFailed):
            await app.resume(calc(name, name) + patched.format("1"))
    (app.folder / "flag").unlink()
    assert await app.resume(calc("w", "w") + patched.format("1")) == 1
    assert app.log.count("calc 1") == 1


@pytest.mark.parametrize(("then", "now"), [("x, y", "y, x"), ("x, y", "y, z"), ("x, y", "z, x"), ("x", "new, x=1")])
async def test_a_name_that_another_parameter_has_now_is_not_guessed(app: App, then: str, now: str) -> None:
    """Nothing tells whether the parameters were renamed or put in another order."""
    given = "1, 2" if ", " in then else "1"
    await app.begin(calc(then, "x", "(effect='irreversible')") + ONE.format(given))
    with pytest.raises(RunFailed) as raised:
        await app.resume(calc(now, now[0], "(effect='irreversible')") + ONE.format(given))
    assert isinstance(raised.value.__cause__, EffectNotMet)
    assert app.log == ["calc 1"]


async def test_parameters_in_another_order_that_are_given_by_name(app: App) -> None:
    await app.begin(calc("x, y", "x") + ONE.format("x=1, y=2"))
    assert await app.resume(calc("y, x", "x") + ONE.format("x=1, y=2")) == 1
    assert app.log == ["calc 1"]


@pytest.mark.parametrize("last", ["b, a", "b, a, more=1"])
async def test_no_result_of_before_a_swap_is_used_after_a_renaming(app: App, last: str) -> None:
    """A swap gives the call another meaning, so it runs again. The next names are those of what it means since."""
    await app.begin(calc("x, y", "x") + ONE.format("1, 2"))
    (app.folder / "flag").touch()
    with pytest.raises(StepFailed):
        await app.resume(calc("y, x", "x") + ONE.format("1, 2"))
    (app.folder / "flag").unlink()
    assert await app.resume(calc(last, "a") + ONE.format("1, 2")) == 2
    assert app.log == ["calc 1", "calc 2"]


async def test_names_before_a_swap_that_is_restored_are_found(app: App) -> None:
    await app.begin(calc("x, y", "x") + ONE.format("1, 2"))
    (app.folder / "flag").touch()
    with pytest.raises(StepFailed):
        await app.resume(calc("y, x", "x") + ONE.format("1, 2"))
    (app.folder / "flag").unlink()
    assert await app.resume(calc("x, y", "x") + ONE.format("1, 2")) == 1
    assert app.log == ["calc 1", "calc 2"]


@pytest.mark.parametrize("declared", ["", "(effect='irreversible')"])
async def test_a_parameter_that_was_added_after_the_run_began_is_renamed(app: App, declared: str) -> None:
    await app.begin(calc("x", "x", declared) + LOOP)
    (app.folder / "flag").write_text("3")
    with pytest.raises(StepFailed):
        await app.resume(calc("x, n=1", "x", declared) + LOOP)
    (app.folder / "flag").unlink()
    assert await app.resume(calc("z, m=1", "z", declared) + LOOP) == [1, 1, 2, 3]
    assert app.log == ["calc 1", "calc 1", "calc 2", "calc 3"]


async def test_an_effect_of_a_deleted_call_is_not_repeated_under_other_names(app: App) -> None:
    """Nor if the step has got a parameter with a default."""
    flow = "@workflow\nasync def flow():\n{}    await die()\n    y = await calc(1)\n    return y\n"
    irreversible = "(effect='irreversible')"
    await app.begin(calc("x", "x", irreversible) + flow.format("    x = await calc(1)\n"))
    with pytest.raises(RunFailed) as raised:
        await app.resume(calc("z, more=1", "z", irreversible) + flow.format(""), accept_changes=True)
    assert isinstance(raised.value.__cause__, EffectNotMet)
    assert app.log == ["calc 1"]


UNDO = """
def undo(key, result, {}):
    log(f"undo {{{}}}")

"""


@pytest.mark.parametrize("now", ["x", "z", "z, more='m'"])
async def test_a_hook_gets_the_arguments_by_their_names_of_now(app: App, now: str) -> None:
    declared = "(effect='irreversible', compensate=undo)"
    await app.begin(UNDO.format("x", "x") + calc("x", "x", declared) + ONE.format("1"))
    run_id = str(app.runtime.last_run_id)
    (base, *_) = await app.runtime.store.checkpoints(RunId(run_id))
    again = UNDO.format(now, now[0]) + calc(now, now[0], declared) + ONE.format("1")
    assert await app.resume(again, back_to=base.id) == 1
    assert app.log == ["calc 1", "undo 1", "calc 1"]


async def test_a_fork_of_a_run_uses_recorded_effects_under_other_names(app: App) -> None:
    declared = "(effect='irreversible', in_fork='recorded')"
    await app.begin(calc("x", "x", declared) + ONE.format("1"))
    (base, *_) = await app.runtime.store.checkpoints(RunId(str(app.runtime.last_run_id)))
    fork = await app.runtime.fork(base.id)
    app.load(calc("z, more='m'", "z", declared) + ONE.format("1"))
    assert await app.runtime.resume(fork.id) == 1
    assert app.log == ["calc 1"]
