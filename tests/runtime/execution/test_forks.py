"""How `adopt` resolves conflicts, and that a resumed run uses the recorded merge."""

from __future__ import annotations

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
