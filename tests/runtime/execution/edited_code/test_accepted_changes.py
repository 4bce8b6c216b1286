"""Runs whose code does something else when they are resumed: recorded results stay with the calls that made them."""

from __future__ import annotations

import pytest

from ramify.compiler.plan import ADDED, OpKind, Plan
from ramify.runtime.errors import (
    Diverged,
    EffectNotMet,
    RunError,
    RunFailed,
    StepFailed,
    WorkflowChanged,
)
from tests.runtime.execution.edited_code.files import DONE, ONCE, THREE, App
from tests.samples import sample


@pytest.mark.parametrize("before", ["out =", "ada =", "bob =", "cyd =", "await die", "return"][:: sample(2, 1)])
async def test_a_step_is_added_and_accepted(app: App, before: str) -> None:
    await app.begin(THREE)
    text = THREE.replace(f"    {before}", f"    await extra('x')\n    {before}")
    shown = await app.changes(text)
    assert len(shown.kept) == 5
    assert (shown.again, shown.aside, shown.refused) == ((), (), ())
    assert [line.partition(" at ")[0] for line in shown.added] == ["extra"]
    assert await app.resume(text, accept_changes=True) == DONE
    assert sorted(app.log) == sorted([*ONCE, "extra"])
    (row,) = [row for row in await app.runtime.journal() if row.kind is OpKind.CHANGE]
    assert row.summary.startswith("changed code accepted")


async def test_the_next_resume_compares_with_the_accepted_code(app: App) -> None:
    await app.begin(THREE)
    (app.folder / "flag").touch()
    text = THREE.replace("    bob =", "    await extra('x')\n    bob =")
    with pytest.raises(StepFailed):
        await app.resume(text, accept_changes=True)
    with pytest.raises(WorkflowChanged):
        await app.resume(THREE)
    more = text.replace("    cyd =", "    await extra('y')\n    cyd =")
    (app.folder / "flag").unlink()
    assert await app.resume("# shifted\n" + more, accept_changes=True) == DONE
    assert app.log == [*ONCE, "extra", "extra"]


async def test_a_run_is_readable_after_code_was_changed_back_and_forth(app: App) -> None:
    await app.begin(THREE)
    (app.folder / "flag").touch()
    other = THREE.replace("    bob =", "    await extra('x')\n    bob =")
    for text in (other, THREE, other, THREE):
        with pytest.raises(StepFailed):
            await app.resume(text, accept_changes=True)
    (app.folder / "flag").unlink()
    assert await app.resume(other, accept_changes=True) == DONE
    assert [line for line in app.log if line != "extra"] == ONCE


async def test_swapped_names_keep_their_own_results(app: App) -> None:
    await app.begin(THREE)
    swapped = THREE.replace("ada = await", "TMP = await").replace("bob = await", "ada = await").replace("TMP", "bob")
    with pytest.raises(WorkflowChanged):
        await app.resume(swapped)
    assert await app.resume(swapped, accept_changes=True) == DONE
    assert app.log == ONCE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = [await next_id(), await next_id()]", "x = [await next_id(), await next_id(), await next_id()]"),
        ("x = await next_id()", "y = await next_id()\n    x = y"),
        ("x = await next_id()", "if 1:\n        x = await next_id()\n    else:\n        x = await next_id()"),
        ("x = await next_id()", "for _ in 'ab':\n        x = await next_id()"),
        ("x = await next_id()", "x = await (lambda: next_id())()"),
        ("x = [await next_id() for _ in 'ab']", "x = [await next_id() for _ in 'abc']"),
        ("for n in 'ab':\n        x = await next_id()", "for n in 'cab':\n        x = await next_id()"),
        ("x = await many('a')\n    await many('b')", "await many('c')\n    x = await many('a')\n    await many('b')"),
        ("x = await unseen(next_id)", "await extra('x')\n    x = await unseen(next_id)"),
        ("a, x = await next_id(), await next_id()", "x, a = await next_id(), await next_id()"),
        (
            "f = many\n    x = await many('a')",
            "f = many\n    later = f('b')\n    await later\n    x = await many('a')",
        ),
    ],
)
async def test_an_ambiguous_call_is_refused(app: App, old: str, new: str) -> None:
    helpers = "async def many(text):\n    return await next_id()\n\nasync def unseen(of):\n    return await of()\n\n"
    flow = helpers + "@workflow\nasync def flow():\n    {}\n    await die()\n    return x\n"
    await app.begin(flow.format(old))
    before = app.log
    assert (await app.changes(flow.format(new))).refused
    with pytest.raises(WorkflowChanged, match="it is uncertain to which calls"):
        await app.resume(flow.format(new), accept_changes=True)
    assert app.log == before
    await app.resume(flow.format(old))
    assert app.log == before


async def test_an_ambiguous_pure_call_runs_again(app: App) -> None:
    flow = "@workflow\nasync def flow():\n    x = [await extra(n) for n in {}]\n    await die()\n    return x\n"
    await app.begin(flow.format("'ab'"))
    assert (await app.changes(flow.format("'cab'"))).again
    assert await app.resume(flow.format("'cab'"), accept_changes=True) == ["c", "a", "b"]
    assert len(app.log) == 5


async def test_a_loop_before_the_change_keeps_its_results(app: App) -> None:
    flow = "@workflow\nasync def flow():\n    x = []\n    for n in 'ab':\n        x.append(await next_id())\n"
    flow += "{}    await die()\n    return x\n"
    await app.begin(flow.format(""))
    assert await app.resume(flow.format("    await extra('x')\n"), accept_changes=True) == [1, 2]
    assert app.log == ["id", "id", "extra"]


async def test_operation_ids_are_never_reused(app: App) -> None:
    await app.begin(THREE)
    text = THREE.replace("    bob = await next_id()\n", "    bob = 0\n")
    assert await app.resume(text, accept_changes=True) == [["a", "b"], 1, 0, 3]
    record = await app.runtime.record()
    plan, rows = Plan.from_json(record.plan_json), await app.runtime.journal()
    added = {op.id for op in plan.ops if ADDED in op.attrs}
    assert added.isdisjoint({row.op_id for row in rows if row.kind is OpKind.RUN and row.step != "die"})


GUARDED = """
async def unseen(of, who):
    return await of(who)

@workflow
async def flow():
    {}
    await die()
    return 1
"""


async def test_no_equal_irreversible_step_runs_at_a_place_that_is_new(app: App) -> None:
    await app.begin(GUARDED.format("await pay('a')"))
    moved = GUARDED.format("await unseen(pay, 'a')")
    with pytest.raises((RunFailed, WorkflowChanged)) as error:
        await app.resume(moved, accept_changes=True)
    assert isinstance(error.value, WorkflowChanged) or isinstance(error.value.__cause__, EffectNotMet)
    assert app.log == ["pay a"]


@pytest.mark.parametrize(
    "work",
    [
        "for who in ['a', 'a', 'b']:\n        await unseen(pay, who)",
        "await asyncio.gather(*[unseen(pay, who) for who in ['a', 'a', 'b']])",
        "await unseen(pay, 'a')\n    await unseen(pay, 'a')\n    await unseen(pay, 'b')",
    ],
)
async def test_equal_calls_under_a_graph_break_are_matched_in_order(app: App, work: str) -> None:
    await app.begin(GUARDED.format(work))
    assert await app.resume("# moved\n" + GUARDED.format(work)) == 1
    assert app.log == ["pay a", "pay a", "pay b"]


MINE = '@step(effect="irreversible")\nasync def mine({}):\n    log("mine")\n    return 1\n'
USES = "\n@workflow\nasync def flow():\n    one = await mine({})\n    await die()\n    return one\n"


@pytest.mark.parametrize("then", ["a", "a, b='x'"])
@pytest.mark.parametrize("more", ["c=None", "*, c=None, d=1"])
async def test_a_step_that_gets_parameters_with_defaults_keeps_its_results(app: App, then: str, more: str) -> None:
    await app.begin(MINE.format(then) + USES.format("1"))
    assert await app.resume(MINE.format(f"{then}, {more}") + USES.format("1")) == 1
    assert app.log == ["mine"]


@pytest.mark.parametrize(
    ("then", "now", "why"),
    [
        ("a, b=1", "b, c=1", "took a, b then, and takes b, c now"),
        ("a, b='x'", "a", "took a, b then, and takes a now"),
        ("a, b='x'", "a, b='y'", "defaults of b have changed"),
        ("a, b='x'", "a, b='y', c=1", "took a, b then, and takes a, b, c now"),
    ],
)
async def test_a_step_with_another_signature_is_not_done_a_second_time(
    app: App, then: str, now: str, why: str
) -> None:
    await app.begin(MINE.format(then) + USES.format("1"))
    with pytest.raises(RunFailed) as error:
        await app.resume(MINE.format(now) + USES.format("1"))
    assert isinstance(error.value.__cause__, EffectNotMet)
    assert why in str(error.value)
    assert await app.resume("# as it was\n" + MINE.format(then) + USES.format("1")) == 1
    assert app.log == ["mine"]


async def test_keyword_arguments_in_another_order_are_the_same_call(app: App) -> None:
    """Also for a step that takes them as a dict, whose order it sees."""
    step = MINE.format("a, **more")
    before, after = (step + USES.format(given) for given in ("a=1, b=2, c=3", "c=3, b=2, a=1"))
    await app.begin(before)
    assert [line.split()[0] for line in (await app.changes(after)).kept] == ["mine"]
    assert await app.resume(after, accept_changes=True) == 1
    assert app.log == ["mine"]


async def test_an_effect_of_a_deleted_call_is_not_repeated_at_a_call_with_its_arguments_in_another_order(
    app: App,
) -> None:
    flow = "@workflow\nasync def flow():\n{}    await die()\n    y = await mine(1, c=3, b=2)\n    return y\n"
    await app.begin(MINE.format("a, **more") + flow.format("    x = await mine(1, b=2, c=3)\n"))
    with pytest.raises(RunFailed) as raised:
        await app.resume(MINE.format("a, **more") + flow.format(""), accept_changes=True)
    assert isinstance(raised.value.__cause__, EffectNotMet)
    assert app.log == ["mine"]


CALLED = "\n@workflow\nasync def flow():\n    one, two = {}\n    a = await {}(one)\n    b = await {}(two)\n"
CALLED += "    await die()\n    return [a, b]\n"
SEEN = "@step\nasync def see(text):\n    log('see')\n    return text\n"


@pytest.mark.parametrize(("step", "error"), [("pay", EffectNotMet), ("see", Diverged)])
@pytest.mark.parametrize("values", ["'b', 'a'", "'a', 'c'"])
async def test_accepted_code_gives_recorded_calls_other_arguments(
    app: App, step: str, error: type[RunError], values: str
) -> None:
    before, after = (SEEN + CALLED.format(given, step, step) for given in ("'a', 'b'", values))
    await app.begin(before)
    done = app.log
    with pytest.raises(RunFailed) as raised:
        await app.resume(after, accept_changes=True)
    assert isinstance(raised.value.__cause__, error)
    assert await app.resume(before, accept_changes=True) == ["a", "b"]
    assert app.log == done


RENAMED = "@step(effect='irreversible'{})\nasync def {}():\n    log('once')\n    return 1\n"
RENAMED += "\n@workflow\nasync def flow():\n    one = await {}()\n    await die()\n    return one\n"


async def test_a_step_of_another_name_may_be_the_same(app: App) -> None:
    await app.begin(RENAMED.format("", "give", "give"))
    with pytest.raises(WorkflowChanged, match=r"hand is new.*@step\(name='give'\)"):
        await app.resume(RENAMED.format("", "hand", "hand"), accept_changes=True)
    assert await app.resume(RENAMED.format(", name='give'", "hand", "hand")) == 1
    assert app.log == ["once"]


async def test_an_effect_of_a_deleted_call_is_not_repeated_at_an_equal_call(app: App) -> None:
    flow = "@workflow\nasync def flow():\n{}    await die()\n    y = await pay('a')\n    return y\n"
    await app.begin(flow.format("    x = await pay('a')\n"))
    with pytest.raises(RunFailed) as raised:
        await app.resume(flow.format(""), accept_changes=True)
    assert isinstance(raised.value.__cause__, EffectNotMet)
    assert app.log == ["pay a"]
