"""Equal calls in a loop over a set of strings, whose order is another in each process, are not swapped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramify import Runtime, step, workflow
from ramify.runtime.errors import CallNotTold, RunError, StepFailed
from ramify.runtime.execution import equal_calls, step_call
from ramify.runtime.user_code import hash_order

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


@pytest.fixture(autouse=True)
def _random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    DONE.clear()


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (equal_calls, step_call):
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


@pytest.mark.parametrize(("flow", "refused"), [(looking, True), (alike, False)])
async def test_other_results_are_served_only_in_the_order_in_which_they_were_recorded(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Any, refused: bool
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(StepFailed):
        await runtime.run(flow, {"ada", "bob"}, str(flag))
    run, done = str(runtime.last_run_id), list(DONE)
    flag.unlink()
    with monkeypatch.context() as other:
        in_another_process(other)
        if refused:
            with pytest.raises(RunError, match="could be given to other elements of the set"):
                await runtime.resume(run)
        else:
            assert await runtime.resume(run) == {"ada": "same", "bob": "same"}
    if refused:  # a process with the same order goes on
        assert set((await runtime.resume(run)).values()) == {1, 2}
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
