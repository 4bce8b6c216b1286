"""Equal calls in a loop over a set of strings, whose order is another in each process, are not swapped."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ramify import Runtime, llm, step, workflow
from ramify.runtime.errors import CallNotTold, RunError, StepFailed
from ramify.runtime.execution import equal_answers, equal_calls, step_call
from ramify.runtime.user_code import hash_order
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel

DONE: list[str] = []


@step(effect="irreversible")
async def next_id() -> int:
    DONE.append("id")
    return len(DONE)


@step
async def look() -> int:
    DONE.append("look")
    return len(DONE)


@step(effect="pure")
async def same() -> str:
    DONE.append("same")
    return "same"


@step
async def die(flag: str) -> None:
    if Path(flag).exists():
        raise OSError("the flag is there")


@workflow
async def paying(names: set[str]) -> Any:
    return {name: await next_id() for name in names}


class Chosen:
    name = ""


@step(effect="irreversible")
async def pay(name: str) -> str:
    DONE.append(name)
    return name


@workflow
async def chosen(names: set[str], length: int) -> Any:
    found, now = [], Chosen()
    for name in names:
        now.name = name[:length]
        found.append(await pay(now.name))
    return sorted(found)


@workflow
async def looking(names: set[str], flag: str) -> Any:
    found = {name: await look() for name in names}
    await die(flag)
    return found


@workflow
async def alike(names: set[str], flag: str) -> Any:
    found = {name: await same() for name in names}
    await die(flag)
    return found


@workflow
async def untyped(names: Any, flag: str) -> Any:  # an annotation that says nothing is as good as none
    found = {name: await look() for name in names}
    await die(flag)
    return found


@workflow
async def unannotated(names, flag):  # type: ignore[no-untyped-def]
    found = {name: await look() for name in names}
    await die(flag)
    return found


@workflow
async def picked(names: set[str], flag: str) -> Any:
    one = next(iter(names))
    if "IN_ANOTHER_PROCESS" in os.environ:
        one = next(iter(names - {one}))
    await pay(one)
    await die(flag)
    return one


@workflow
async def asking(names: set[str], flag: str) -> Any:
    found = {name: (await llm.chat("a number", temperature=1.0)).text for name in names}
    await die(flag)
    return found


@workflow
def asking_in_threads(names: set[str], flag: str) -> Any:
    together = threading.Barrier(2)

    def ask(name: str) -> Any:
        together.wait(60)
        answer: Any = llm.chat("a number", temperature=1.0)
        return name, answer.text

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(copy_context().run, ask, name) for name in sorted(names)]
        found = [each.result() for each in waiting]
    die(flag)
    return dict(found)


@pytest.fixture(autouse=True)
def _random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    DONE.clear()


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IN_ANOTHER_PROCESS", "yes")
    for module in (equal_answers, equal_calls, step_call):
        monkeypatch.setattr(module, "order_of_sets", lambda: "of another process")


async def test_an_irreversible_step_is_refused_before_it_is_done(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=r"in a loop over a set.*sorted") as refused:
        await runtime.run(paying, {"ada", "bob"})
    assert isinstance(refused.value, CallNotTold) or isinstance(refused.value.__cause__, CallNotTold)
    assert DONE == []
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert sorted((await runtime.run(paying, {"ada", "bob"})).values()) == [1, 2]


async def test_arguments_that_the_compiler_does_not_follow_are_compared(runtime: Runtime) -> None:
    assert await runtime.run(chosen, {"ada", "ann"}, 3) == ["ada", "ann"]
    with pytest.raises(RunError, match="in a loop over a set"):
        await runtime.run(chosen, {"ada", "ann"}, 1)
    assert sorted(DONE) == ["a", "ada", "ann"]


@step(effect="irreversible", idempotent=True)
async def pay_twice(name: str) -> str:
    DONE.append(name)
    if DONE.count(name) < 2:
        raise ConnectionError(name)
    return name


async def again(function: Any, *args: Any) -> Any:
    for _ in range(2):
        try:
            return await function(*args)
        except ConnectionError:
            continue


@workflow
async def retried_by_a_helper(names: set[str], flag: str) -> Any:
    calls = {"pay": pay_twice}
    found = [await again(calls["pay"], name) for name in names]
    await die(flag)
    return sorted(found)


@workflow
async def by_name(names: set[str], flag: str) -> Any:
    steps = {"pay": pay, "look": same_for}
    found = {name: [await one(name) for one in steps.values()] for name in names}
    await die(flag)
    return sorted(found)


@step
async def same_for(name: str) -> str:
    return f"same for {name}"


@pytest.mark.parametrize("flow", [retried_by_a_helper, by_name])
async def test_retries_and_other_steps_are_no_equal_calls(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Any
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(StepFailed, match="the flag is there"):
        await runtime.run(flow, {"ada", "bob"}, str(flag))
    flag.unlink()
    done = list(DONE)
    in_another_process(monkeypatch)
    assert await runtime.resume(str(runtime.last_run_id)) == ["ada", "bob"]
    assert done == DONE


@pytest.fixture
async def model() -> AsyncIterator[LLMClient]:
    numbers = count(1)
    async with LLMClient("http://model.test/v1", transport=ScriptedModel(lambda _: f"{next(numbers)}")) as client:
        yield client


@pytest.mark.parametrize(
    ("flow", "refused"),
    [
        (looking, "to other elements of the set"),
        (unannotated, "to other elements of the set"),
        (untyped, "to other elements of the set"),
        (asking, "to other elements of the set"),
        (asking_in_threads, "answers could be swapped"),
        (picked, "depends on the order of a set"),
        (alike, None),
    ],
)
async def test_other_results_are_served_only_in_the_order_in_which_they_were_recorded(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Any, refused: str | None
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(StepFailed):
        await runtime.run(flow, {"ada", "bob"}, str(flag))
    run, done = str(runtime.last_run_id), list(DONE)
    flag.unlink()
    with monkeypatch.context() as other:
        in_another_process(other)
        if refused is not None:
            with pytest.raises(RunError, match=refused):
                await runtime.resume(run)
        else:
            assert await runtime.resume(run) == {"ada": "same", "bob": "same"}
    if refused in ("to other elements of the set",):  # a process with the same order goes on
        assert {int(found) for found in (await runtime.resume(run)).values()} == {1, 2}
    assert done == DONE


def test_the_order_tells_processes_apart() -> None:
    program = "from ramify.runtime.user_code.hash_order import order_of_sets; print(order_of_sets())"

    def order(seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        ).stdout

    assert order("1") == order("1") != order("2")
    assert hash_order.order_of_sets() == hash_order.order_of_sets()
