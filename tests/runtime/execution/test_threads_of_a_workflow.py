"""Threads of a plain `def` workflow take turns by chance: equal calls in them cannot be told apart at a resume."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify import Runtime, step, workflow
from ramify.compiler.frontend.python.workflow_reader import read_workflow
from ramify.runtime.errors import CallNotTold, NotInARun, RunError, StepFailed
from tests.plans import compile_plan

DONE: list[str] = []


@step(effect="irreversible")
def next_id() -> int:
    DONE.append("id")
    return len(DONE)


@step(effect="irreversible")
def pay(who: str) -> str:
    DONE.append(who)
    return who


def in_threads(names: list[str], call: Any) -> list[Any]:
    """Call in one thread for each name; all threads exist at the same time."""
    together = threading.Barrier(len(names))

    def one(name: str) -> Any:
        together.wait(60)
        return call(name)

    with ThreadPoolExecutor(len(names)) as pool:
        waiting = [pool.submit(copy_context().run, one, name) for name in names]
        return [each.result() for each in waiting]


@workflow
def equal_calls(names: list[str]) -> Any:
    return in_threads(names, lambda _: next_id())


@workflow
def equal_calls_caught(names: list[str]) -> Any:
    try:
        return in_threads(names, lambda _: next_id())
    except RunError:
        return "caught"


@step
def look() -> int:
    DONE.append("look")
    return len(DONE)


@step(effect="pure")
def same() -> str:
    DONE.append("same")
    return "same"


@step
def die(flag: str) -> None:
    if Path(flag).exists():
        raise OSError("the flag is there")


@workflow
def looks(flag: str) -> Any:
    found = in_threads(["ada", "bob"], lambda name: (name, look()))
    die(flag)
    return found


@workflow
def looks_alike(flag: str) -> Any:
    found = in_threads(["ada", "bob"], lambda name: (name, same()))
    die(flag)
    return found


@workflow
def other_calls(names: list[str]) -> Any:
    first: Any = [next_id(), next_id()]
    return [*first, *in_threads(names, pay), next_id()]


@pytest.mark.parametrize("flow", [equal_calls, equal_calls_caught])
async def test_equal_irreversible_calls_of_two_threads_are_refused(runtime: Runtime, flow: Any) -> None:
    DONE.clear()
    with pytest.raises(RunError, match="two threads of the workflow call step 'next_id'") as refused:
        await runtime.run(flow, ["ada", "bob"])
    assert isinstance(refused.value, CallNotTold) or isinstance(refused.value.__cause__, CallNotTold)
    assert len(DONE) <= 1


@pytest.mark.parametrize(("flow", "refused"), [(looks, True), (looks_alike, False)])
async def test_other_equal_calls_are_refused_at_a_resume_if_their_results_differ(
    runtime: Runtime, tmp_path: Path, flow: Any, refused: bool
) -> None:
    """Which thread got which of two recorded results was left to chance."""
    DONE.clear()
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(StepFailed):
        await runtime.run(flow, str(flag))
    flag.unlink()
    if refused:
        with pytest.raises(RunError, match="got different results") as error:
            await runtime.resume(str(runtime.last_run_id))
        assert isinstance(error.value, CallNotTold) or isinstance(error.value.__cause__, CallNotTold)
    else:
        found = await runtime.resume(str(runtime.last_run_id))
        assert [tuple(each) for each in found] == [("ada", "same"), ("bob", "same")]
    assert len(DONE) == 2


async def test_a_run_of_plan_format_8_resumes_as_it_did(runtime: Runtime, tmp_path: Path) -> None:
    DONE.clear()
    flag = tmp_path / "flag"
    flag.touch()
    plan, then = compile_plan(looks), read_workflow(looks, ref="", version=8)
    digests = {each.name: each.code_digest for each in then.steps}
    steps = tuple(replace(each, code_digest=digests[each.name]) for each in plan.steps)
    old = replace(plan, version=8, code=then.code, code_digest=then.code_digest, steps=steps)
    with pytest.raises(StepFailed):
        await runtime.run(looks, str(flag), plan=old)
    flag.unlink()
    assert sorted(name for name, _ in await runtime.resume(str(runtime.last_run_id))) == ["ada", "bob"]
    assert len(DONE) == 2


async def test_calls_with_other_arguments_and_equal_calls_of_one_thread_are_made(runtime: Runtime) -> None:
    DONE.clear()
    assert await runtime.run(other_calls, ["ada", "bob", "cyd"]) == [1, 2, "ada", "bob", "cyd", 6]
    assert sorted(DONE) == ["ada", "bob", "cyd", "id", "id", "id"]


@workflow
def one_thread_after_another(count: int) -> Any:
    found: list[int] = []
    for _ in range(count):
        thread = threading.Thread(target=copy_context().run, args=(lambda: found.append(next_id()),))
        thread.start()
        thread.join()
    return found


async def test_threads_that_follow_one_another_are_told_apart(runtime: Runtime) -> None:
    """It depended on whether the system gave the next thread the same number."""
    DONE.clear()
    assert await runtime.run(one_thread_after_another, 5) == [1, 2, 3, 4, 5]


def test_a_step_in_a_thread_without_the_workflows_context_says_how_to_pass_it() -> None:
    @step
    def one() -> int:
        return 1

    with ThreadPoolExecutor() as pool, pytest.raises(NotInARun, match=r"pool\.submit\(contextvars\.copy_context"):
        pool.submit(one).result()
    with pytest.raises(NotInARun, match=r"`ramify run`\)$"):
        one()
