from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramify.compiler.errors import VerifyError
from ramify.compiler.plan import Effect, OpKind


def kinds(compilation: Any) -> list[str]:
    """Return the operations by kind, and steps by name."""
    return [op.step or str(op.kind) for op in compilation.ssg.ops()]


def test_effects_are_declared_or_follow_from_the_signature(compile_source: Callable[..., Any]) -> None:
    plan = compile_source("""
@step
async def unsaid(x=None): ...
@workflow
async def flow():
    await edit(); await score(); await mail(); await unsaid()
""").plan
    assert {(step.name, step.effect, step.why) for step in plan.steps} == {
        ("edit", Effect.REVERTIBLE, "takes a Sandbox"),
        ("score", Effect.PURE, "declared"),
        ("mail", Effect.IRREVERSIBLE, "declared"),
        ("unsaid", Effect.UNKNOWN, "not declared, takes no Sandbox"),
    }


def test_a_seal_follows_each_step_that_may_change_its_world_and_no_other(compile_source: Callable[..., Any]) -> None:
    found = kinds(
        compile_source("""
@workflow
async def flow():
    await edit(); await score(); await mail()
""")
    )
    assert found == ["ENTER", "edit", "SEAL", "score", "BARRIER", "mail", "SEAL", "RELEASE"]


def test_a_fork_of_a_sealed_world_needs_no_seal_of_its_own(compile_source: Callable[..., Any]) -> None:
    compilation = compile_source("""
@workflow
async def flow():
    async with fork([1]) as first:
        pass
    await edit()
    async with fork([1]) as second:
        await second.map(edit)
        await second[0].adopt()
    async with fork([1]) as third:
        pass
""")
    assert kinds(compilation).count("SEAL") == 2
    forks = [op for op in compilation.plan.ops if op.kind is OpKind.FORK]
    assert [op.attrs["base"] for op in forks] == [["enter"], ["seal.1"], ["merge.1"]]


def test_a_world_that_a_break_may_have_changed_is_sealed_before_it_is_forked(
    compile_source: Callable[..., Any],
) -> None:
    compilation = compile_source("""
@workflow
async def flow(strategy):
    await strategy()
    async with fork([1]) as branches:
        pass
""")
    assert kinds(compilation) == ["ENTER", "BREAK", "SEAL", "FORK", "RELEASE", "RELEASE"]
    plan = compilation.plan
    (fork,) = [op for op in plan.ops if op.kind is OpKind.FORK]
    seal = plan.before(fork, OpKind.SEAL)
    assert seal is not None
    assert (seal.id, seal.site) == ("seal.fork.1", fork.site)
    assert fork.attrs["base"] == ["seal.fork.1"]


def test_an_irreversible_step_in_a_branch_is_refused(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(VerifyError, match="mail") as error:
        compile_source("""
async def tell(branch):
    async with branch.enter():
        await mail()

@workflow
async def flow():
    async with fork([1]) as branches:
        await tell(branches[0])
""")
    assert error.value.rule == "no irreversible step in a branch"
    assert "app/sample.py" in str(error.value)


def test_an_irreversible_step_on_the_root_world_may_run_beside_a_fork(compile_source: Callable[..., Any]) -> None:
    found = kinds(
        compile_source("""
@workflow
async def flow():
    async with fork([1]) as branches:
        await branches.map(edit)
        await mail()
""")
    )
    assert "mail" in found
