"""Runs whose code is edited before they are resumed: recorded results stay with the calls that made them."""

from __future__ import annotations

import importlib
import json
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramify import Runtime
from ramify.compiler.plan import ADDED, OpKind, Plan
from ramify.runtime.errors import (
    CallNotTold,
    Diverged,
    EffectNotMet,
    RunError,
    RunFailed,
    RunWaiting,
    StepFailed,
    WorkflowChanged,
)
from ramify.session import compile_plan

HEAD = """
import asyncio
from pathlib import Path
import ramify
from ramify import Sandbox, fork, interrupt, step, workflow

LOG, FLAG = Path(__file__).with_name("log"), Path(__file__).with_name("flag")

def log(text):
    with LOG.open("a") as file:
        file.write(text + "\\n")

@step(effect="irreversible")
async def pay(who):
    log(f"pay {who}")
    return who

@step(effect="irreversible")
async def next_id():
    log("id")
    return LOG.read_text().splitlines().count("id")

@step
async def look():
    log("look")
    return LOG.read_text().splitlines().count("look")

@step(effect="pure")
async def extra(text):
    log("extra")
    return text

@step
async def die():
    if FLAG.exists():
        raise OSError("the flag is there")

"""
THREE = """
@workflow
async def flow():
    out = [await pay("a"), await pay("b")]
    ada = await next_id()
    bob = await next_id()
    cyd = await next_id()
    await die()
    return [out, ada, bob, cyd]
"""
DONE = [["a", "b"], 1, 2, 3]
ONCE = ["pay a", "pay b", "id", "id", "id"]


class App:
    """A file that is written, imported anew and run."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.folder, self.runtime = folder, runtime
        (folder / "flag").touch()

    def load(self, text: str, helpers: str = "") -> ModuleType:
        for name, source in (("edited_code", HEAD + text), ("edited_code_helpers", helpers)):
            if source:
                (self.folder / f"{name}.py").write_text(source)
            sys.modules.pop(name, None)
        linecache.clearcache()
        importlib.invalidate_caches()
        return importlib.import_module("edited_code")

    async def begin(self, text: str, helpers: str = "", error: type[RunError] = StepFailed) -> None:
        with pytest.raises(error):
            await self.runtime.run(self.load(text, helpers).flow)
        (self.folder / "flag").unlink()

    async def resume(self, text: str, helpers: str = "", **how: Any) -> Any:
        self.load(text, helpers)
        return await self.runtime.resume(str(self.runtime.last_run_id), **how)

    async def changes(self, text: str) -> Any:
        self.load(text)
        return await self.runtime.changes_of_code(str(self.runtime.last_run_id))

    @property
    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Iterator[App]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "edited"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield App(folder, runtime)
    for name in ("edited_code", "edited_code_helpers"):
        sys.modules.pop(name, None)


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


@pytest.mark.parametrize("before", ["out =", "ada =", "bob =", "cyd =", "await die", "return"])
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
        ("a", "b", "took a then, and takes b now"),
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


async def test_a_given_plan_is_moved_to_the_present_lines(app: App) -> None:
    plan = compile_plan(app.load(THREE).flow)
    module = app.load("# a\n# comment\n" + THREE)
    with pytest.raises(StepFailed):
        await app.runtime.run(module.flow, plan=Plan.from_json(plan.to_json()))
    ran = [row.op_id for row in await app.runtime.journal() if row.kind is OpKind.RUN and row.step == "next_id"]
    assert ran == ["run.3", "run.4", "run.5"]
    (app.folder / "flag").unlink()
    assert await app.resume("#\n" + THREE) == DONE
    assert app.log == ONCE


async def test_a_plan_of_other_code_expects_the_common_operations(app: App) -> None:
    plan = compile_plan(app.load(THREE).flow)
    module = app.load(THREE.replace("    bob =", "    await extra('x')\n    bob ="))
    with pytest.raises(StepFailed):
        await app.runtime.run(module.flow, plan=plan)
    ran = {row.step: row.op_id for row in await app.runtime.journal() if row.kind is OpKind.RUN}
    assert ran["extra"] == "break.unseen"
    (app.folder / "flag").unlink()
    text = THREE.replace("    bob =", "    await extra('x')\n    bob =")
    assert await app.resume("# shifted\n" + text) == DONE


async def test_without_columns_the_line_decides_or_an_error_is_raised(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under PYTHONNODEBUGRANGES."""
    from ramify.runtime.user_code import call_sites

    one = THREE.replace('[await pay("a"), await pay("b")]', '[await pay("a"),\n        await pay("b")]')
    position = call_sites._position
    await app.begin(one)
    monkeypatch.setattr(call_sites, "_position", lambda frame: (position(frame)[0], call_sites.NO_COLUMN))
    assert await app.resume(one) == DONE
    assert app.log == ONCE
    (app.folder / "flag").touch()
    with pytest.raises(RunFailed, match="PYTHONNODEBUGRANGES") as error:
        await app.runtime.run(app.load(THREE).flow)
    assert isinstance(error.value.__cause__, CallNotTold)


async def test_a_plan_of_format_5_is_recognised_under_each_python(app: App) -> None:
    """Its digests are computed from `ast.dump`, whose output differs between versions of Python."""
    from ramify.compiler.frontend.python.workflow_reader import read_workflow

    for minor in (11, 12, 13):
        module = app.load(THREE)
        now = compile_plan(module.flow)
        spec = read_workflow(module.flow, ref=now.workflow, version=5, minor=minor)
        said = json.loads(now.to_json())
        for key in ("places", "patches", "files"):
            del said[key]
        for op in said["ops"]:
            del op["origin"]
        said |= {"version": 5, "code_digest": spec.code_digest}
        said["code"] = [
            {"name": p.name, "where": p.where, "digest": p.digest, "steps": list(p.steps)} for p in spec.code
        ]
        said["steps"] = [
            {**step, "code_digest": next(one.code_digest for one in spec.steps if one.name == step["name"])}
            for step in said["steps"]
        ]
        (app.folder / "flag").touch()
        (app.folder / "log").write_text("")
        with pytest.raises(StepFailed):
            await app.runtime.run(app.load(THREE).flow, plan=Plan.from_json(json.dumps(said)))
        (app.folder / "flag").unlink()
        with pytest.raises(WorkflowChanged, match="earlier version of Ramify"):
            await app.resume(THREE.replace("    bob =", "    await extra('x')\n    bob ="), accept_changes=True)
        assert await app.resume("# shifted\n" + THREE) == DONE
        assert app.log == ONCE
