"""The passes that can be turned off: where they place something, where they must not, and that off means gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramify.compiler.errors import WorkflowError
from ramify.compiler.estimates import Unmeasured
from ramify.compiler.passes import OPTIONAL, PIPELINE, chosen
from ramify.compiler.pipeline import compile_spec
from ramify.compiler.plan import OpKind, Plan


def of(plan: Plan, kind: OpKind) -> list[Any]:
    return [op for op in plan.ops if op.kind is kind]


def test_only_passes_that_are_not_needed_can_be_left_out() -> None:
    assert [each.name for each in chosen(())] == [each.name for each in PIPELINE if each.needed]
    assert chosen(None) == chosen(OPTIONAL) == PIPELINE
    with pytest.raises(WorkflowError, match="lookahed: there is no such pass; choose from placement"):
        chosen(["lookahed"])


@pytest.mark.parametrize(
    ("between", "ready"),
    [
        ("", True),
        ("await score()", True),
        ("if not ideas:\n        return", True),  # wasted once, at the end of the workflow
        ("await edit()", False),
        ("if ideas:\n        await edit()", False),  # wasted whenever the condition is true
    ],
)
def test_a_prefork_is_placed_where_a_fork_comes_next(
    compile_source: Callable[..., Any], between: str, ready: bool
) -> None:
    compilation = compile_source(f"""
@workflow
async def flow():
    ideas = await llm.propose("?", n=3)
    {between or "pass"}
    async with fork(ideas) as branches:
        await branches.map(edit)
""")
    preforks = of(compilation.plan, OpKind.PREFORK)
    assert [(op.attrs["during"], op.attrs["width"]) for op in preforks] == ([("llm.1", 3)] if ready else [])
    off = compile_spec(compilation.spec, passes=[name for name in OPTIONAL if name != "lookahead"])
    assert of(off.plan, OpKind.PREFORK) == []
    assert "lookahead" not in off.plan.passes


def test_no_prefork_in_a_loop_that_changes_its_world_each_round(compile_source: Callable[..., Any]) -> None:
    compilation = compile_source("""
@workflow
async def flow():
    for _ in range(9):
        await llm.chat("?")
        await edit()
    async with fork([1]) as branches:
        pass
""")
    assert of(compilation.plan, OpKind.PREFORK) == []


class Cheap(Unmeasured):
    def rerun_s(self, step: str) -> float | None:
        return 0.001

    def seal_s(self) -> float | None:
        return 0.1


@pytest.mark.parametrize(
    ("then", "seals"),
    [
        ("await test()", ["seal.2"]),  # only the last snapshot is needed, at the end
        ("async with fork([1]): pass", ["seal.1"]),
        ("await mail()", ["seal.1", "seal.2"]),
        ("await again()", ["seal.1", "seal.2"]),
    ],
)
def test_a_cheap_step_keeps_a_snapshot_that_a_later_operation_needs(
    compile_source: Callable[..., Any], then: str, seals: list[str]
) -> None:
    compilation = compile_source(f"""
@step(reuse=True)
async def again(sandbox: Sandbox): ...
@workflow
async def flow():
    await edit()
    {then}
""")
    plan = compile_spec(compilation.spec, estimates=Cheap()).plan
    assert [op.id for op in of(plan, OpKind.SEAL)] == seals
    whole = compile_spec(compilation.spec, passes=(), estimates=Cheap()).plan
    assert {op.id for op in of(whole, OpKind.SEAL)} >= {"seal.1", *seals}


@pytest.mark.parametrize(
    ("then", "caught"),
    [
        ("await test()", False),
        ("x = await test(); await edit()", False),
        ("try: await test()\n    except ValueError: pass", True),
        ("try: await helper()\n    finally: await edit()", True),
        ("await asyncio.gather(test(), edit(), return_exceptions=True)", True),
        ("with contextlib.suppress(ValueError): await test()", True),
        ("task = asyncio.create_task(test())\n    await task", True),
        ("later = test()\n    await later", True),
    ],
)
def test_a_cheap_step_keeps_its_snapshot_if_the_next_step_may_fail_and_be_caught(
    compile_source: Callable[..., Any], then: str, caught: bool
) -> None:
    """A failed step's world goes back to the state before the step, which must be stored."""
    compilation = compile_source(f"""
import contextlib
async def helper():
    await test()
@workflow
async def flow():
    await edit()
    {then}
    await edit()
""")
    plan = compile_spec(compilation.spec, estimates=Cheap()).plan
    assert ("seal.1" in {op.id for op in plan.ops}) is caught
    assert [op.attrs.get("caught", False) for op in plan.ops if op.step == "test"] == [caught]


def test_a_reusable_step_states_where_an_equal_step_may_have_run(compile_source: Callable[..., Any]) -> None:
    compilation = compile_source("""
@step(reuse=True)
async def built(sandbox: Sandbox, x=None): ...
@step(reuse=True)
async def once(sandbox: Sandbox): ...
@workflow
async def flow():
    await once()
    for _ in range(2):
        await built()
    async with fork([1]) as branches:
        await branches.map(built)
""")
    marks = {op.id: op.attrs.get("shared") for op in of(compilation.plan, OpKind.RUN)}
    assert marks == {"run.1": "runs", "run.2": "rounds", "run.3": "branches"}
    assert all("shared" not in op.attrs for op in compile_spec(compilation.spec, passes=()).plan.ops)


def test_a_snapshot_dies_when_its_world_is_recorded_anew_or_ended(compile_source: Callable[..., Any]) -> None:
    compilation = compile_source("""
@workflow
async def flow(x):
    await edit()
    await score()
    async with fork([1]) as branches:
        await branches.map(edit)
        if x:
            await branches[0].adopt()
    if x:
        await test()
""")
    dies = {op.id: op.attrs["dies"] for op in compilation.plan.ops if "dies" in op.attrs}
    assert dies == {
        "seal.1": ["merge.1", "release.root", "seal.4"],
        "seal.3": ["release.1"],
        "merge.1": ["release.root", "seal.4"],
        "seal.4": ["release.root"],
    }
    off = compile_spec(compilation.spec, passes=[name for name in OPTIONAL if name != "liveness"])
    assert all("dies" not in op.attrs for op in off.plan.ops)


def test_without_the_stages_pass_no_stages_are_expected(compile_source: Callable[..., Any]) -> None:
    compilation = compile_source("""
@workflow
async def flow():
    await llm.chat("?")
""")
    assert compilation.plan.stages == 1
    off = compile_spec(compilation.spec, passes=[name for name in OPTIONAL if name != "stages"]).plan
    assert (off.stages, off.expected) == (None, ())


def test_a_cheap_step_keeps_its_snapshot_for_readers_that_run_beside_others(
    compile_source: Callable[..., Any],
) -> None:
    compilation = compile_source("""
@step
async def look(sandbox: Sandbox):
    return (sandbox.path / "a").read_text()
@workflow
async def flow():
    await edit()
    later = look()
    await edit()
    await look()
    await later
""")
    assert "seal.1" in {op.id for op in compile_spec(compilation.spec, estimates=Cheap()).plan.ops}
    alone = compile_spec(compilation.spec, estimates=Cheap(), passes=["placement"]).plan
    assert {op.attrs.get("beside") for op in alone.ops} == {None}
