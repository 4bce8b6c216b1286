"""A step that leaves its world alone makes none; one that uses it all the same gets it."""

from __future__ import annotations

import asyncio

import hidden_worlds
import pytest
import worldless_app

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.runtime.errors import NotInARun, StepFailed
from ramify.runtime.worlds.world_pool import WorldPool


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []
    acquire = WorldPool.acquire

    async def counting(self: WorldPool, branch: object) -> object:
        found.append(branch)
        return await acquire(self, branch)  # type: ignore[arg-type]

    monkeypatch.setattr(WorldPool, "acquire", counting)
    return found


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_there", "read_there", "look_there", "leave_a_task_there"):
        monkeypatch.setattr(worldless_app, name, getattr(hidden_worlds, name))


async def test_a_step_that_leaves_its_world_alone_makes_none(runtime: Runtime, made: list[object]) -> None:
    assert await runtime.run(worldless_app.counts) == 3
    assert not made
    base = (await runtime.record()).base_snapshot
    rows = await runtime.journal()
    assert [(row.kind, row.snapshot_in, row.snapshot_out) for row in rows] == [(OpKind.RUN, base, base)] * 2


@pytest.mark.usefixtures("unseen")
async def test_a_world_that_is_used_is_made_and_sealed(runtime: Runtime, made: list[object]) -> None:
    assert await runtime.run(worldless_app.shows)
    assert len(made) == 2
    assert await runtime.run(worldless_app.uses) == ["kept\n", "kept\n"]
    assert [row.kind for row in await runtime.journal()] == [OpKind.RUN, OpKind.SEAL, OpKind.RUN]


async def test_a_world_is_there_for_code_that_the_step_does_not_name(runtime: Runtime, made: list[object]) -> None:
    assert len(await runtime.run(worldless_app.uses_unseen)) == 4
    assert len(made) == 4


@pytest.mark.usefixtures("unseen")
async def test_files_of_a_world_that_was_not_made_are_an_error(runtime: Runtime) -> None:
    with pytest.raises(StepFailed, match="take the world as a parameter annotated `Sandbox`"):
        await runtime.run(worldless_app.fails)


@pytest.mark.usefixtures("unseen")
async def test_a_world_that_a_task_asked_for_is_there_before_its_step_ends(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step would make another one beside it."""
    making, most = 0, 0
    acquire = WorldPool.acquire

    async def slow(self: WorldPool, branch: object) -> object:
        nonlocal making, most
        making += 1
        most = max(most, making)
        for _ in range(50):
            await asyncio.sleep(0)
        try:
            return await acquire(self, branch)  # type: ignore[arg-type]
        finally:
            making -= 1

    monkeypatch.setattr(WorldPool, "acquire", slow)
    await runtime.run(worldless_app.leaves)
    assert most == 1
    (late,) = hidden_worlds.left
    with pytest.raises(NotInARun, match="after the end of its step"):
        await late
    hidden_worlds.left.clear()
