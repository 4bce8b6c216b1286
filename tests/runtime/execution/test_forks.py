"""How `adopt` resolves conflicts, and that a resumed run uses the recorded merge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from ramify import Runtime, Sandbox, fork, step, workflow
from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.types import Conflict, MergeStrategy
from ramify.runtime.errors import RunFailed

BROKEN: list[str] = []  # while this is not empty, `read` raises
ASKED: list[str] = []


@step
async def write(sandbox: Sandbox, line: str) -> None:
    (sandbox.path / "hello.txt").write_text(f"{line}\n")


@step
async def read(sandbox: Sandbox) -> list[str]:
    if BROKEN:
        raise RuntimeError(BROKEN[0])
    return (sandbox.path / "hello.txt").read_text().splitlines()


def joined(conflict: Conflict, base: bytes | None, ours: bytes | None, theirs: bytes | None) -> bytes | MergeStrategy:
    ASKED.append(conflict.path)
    return b"+".join(side.strip() for side in (base, ours, theirs) if side is not None) + b"\n"


@workflow
async def two_writers(how: str) -> list[str]:
    async with fork(["left", "right"]) as branches:
        done = await branches.map(write)
        await branches[0].adopt()
        if how == "callback":
            await done[1].adopt(strategy=joined)
        elif how == "union":
            await done[1].adopt(strategy="union")
        elif how == "theirs":
            await branches[1].adopt(strategy="theirs")
        else:
            await branches[1].adopt()
    return await read()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    BROKEN.clear()
    ASKED.clear()


@pytest.mark.parametrize(
    ("how", "lines"),
    [("union", ["left", "right"]), ("theirs", ["right"]), ("callback", ["hello+left+right"])],
)
async def test_conflicts_are_resolved_by_the_strategy(
    runtime: Runtime, workspace: Path, how: Literal["union", "theirs", "callback"], lines: list[str]
) -> None:
    assert await runtime.run(two_writers, how, workspace=workspace) == lines


async def test_an_unresolved_conflict_is_an_error(runtime: Runtime, workspace: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        await runtime.run(two_writers, "fail", workspace=workspace)
    assert isinstance(caught.value.__cause__, MergeConflict)


async def test_a_resumed_run_does_not_call_the_resolver_again(runtime: Runtime, workspace: Path) -> None:
    BROKEN.append("not yet")
    with pytest.raises(RunFailed):
        await runtime.run(two_writers, "callback", workspace=workspace)
    BROKEN.clear()
    assert runtime.last_run_id is not None
    assert await runtime.resume(runtime.last_run_id) == ["hello+left+right"]
    assert ASKED == ["hello.txt"]


BEGUN: list[int] = []
FAST: list[int] = []  # the branches that come to an end
FAILING: set[int] = set()
TOGETHER: list[int] = []  # how many have to have begun before the first one ends


@step
async def race(sandbox: Sandbox, number: int) -> int:
    BEGUN.append(number)
    (sandbox.path / f"{number}.txt").write_text("begun")
    if number in FAILING:
        raise ValueError(f"{number} fails")
    while number not in FAST[:1] or len(BEGUN) < sum(TOGETHER):  # noqa: ASYNC110  # a cancelled one must not wait for others
        await asyncio.sleep(0.01)
    FAST.pop(0)
    return number


@step
async def names(sandbox: Sandbox) -> list[str]:
    if BROKEN:
        raise RuntimeError(BROKEN[0])
    return sorted(path.name for path in sandbox.path.glob("?.txt"))


@workflow
async def first_of(count: int, need: int, concurrency: int, errors: Literal["raise", "return"]) -> list[list[str]]:
    async with fork(range(count)) as branches:
        done = await branches.map(race, need=need, concurrency=concurrency, errors=errors)
        for outcome in done:
            if outcome.error is None:
                await outcome.adopt()
        found = [f"{outcome.index} {outcome.error or outcome.value}" for outcome in done]
    return [found, await names()]


@pytest.fixture(autouse=True)
def _nobody_raced() -> None:
    BEGUN.clear()
    FAST.clear()
    FAILING.clear()
    TOGETHER.clear()


async def test_the_first_results_suffice_and_a_resume_takes_the_same(home: Path, workspace: Path) -> None:
    FAST.extend([3, 1])
    TOGETHER.append(4)
    BROKEN.append("a process that ends here")
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(RunFailed, match="ends here"):
            await runtime.run(first_of, 4, 2, 4, "raise", workspace=workspace)
        run, begun = str(runtime.last_run_id), sorted(BEGUN)
    BROKEN.clear()
    assert begun == [0, 1, 2, 3]
    async with Runtime(home=home, sandbox="copy") as runtime:
        assert await runtime.resume(run) == [["1 1", "3 3"], ["1.txt", "3.txt"]]
    assert sorted(BEGUN) == begun, "what was cancelled is cancelled again before it begins"


async def test_branches_that_nobody_needs_are_not_begun(home: Path, workspace: Path) -> None:
    FAST.append(0)
    async with Runtime(home=home, sandbox="copy") as runtime:
        assert await runtime.run(first_of, 3, 1, 1, "raise", workspace=workspace) == [["0 0"], ["0.txt"]]
    assert BEGUN == [0]


async def test_enough_branches_must_be_left(home: Path, workspace: Path) -> None:
    FAST.extend([1, 2])
    FAILING.update({0, 3})
    async with Runtime(home=home, sandbox="copy") as runtime:
        assert (await runtime.run(first_of, 4, 2, 4, "raise", workspace=workspace))[0] == ["1 1", "2 2"]
        FAST.extend([1, 2])
        with pytest.raises(RunFailed, match="0 fails"):
            await runtime.run(first_of, 4, 3, 4, "raise", workspace=workspace)
        FAST.extend([1, 2])
        found, _ = await runtime.run(first_of, 4, 3, 4, "return", workspace=workspace)
        assert [line.split()[-1] for line in found] == ["fails", "1", "2", "fails"]
        with pytest.raises(RunFailed, match="from 1 to the number of branches, 2"):
            await runtime.run(first_of, 2, 3, 4, "raise", workspace=workspace)
