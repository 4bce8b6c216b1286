"""Workflows whose snapshots get lost: in a line, beside a merge, behind what must not be done again."""

from __future__ import annotations

from pathlib import Path

from ramify import Sandbox, fork, llm, step, workflow

LOG: Path | None = None  # every execution of `put` and `odd` adds a character
BROKEN: list[str] = []  # while this is not empty, `finish` raises


def note(mark: str) -> int:
    assert LOG is not None
    with LOG.open("a") as log:
        log.write(mark)
    return len(LOG.read_text())


@step
async def put(sandbox: Sandbox, name: str) -> str:
    note("p")
    said = await llm.propose(name, n=1)
    (sandbox.path / name).write_text(f"{name} {said[0]}")
    return name


@step
async def odd(sandbox: Sandbox) -> None:
    (sandbox.path / "odd").write_text(str(note("o")))


@step(effect="irreversible")
async def send(sandbox: Sandbox) -> None:
    note("s")
    (sandbox.path / "sent").touch()


@step
async def finish(sandbox: Sandbox) -> list[str]:
    if BROKEN:
        raise RuntimeError(BROKEN[0])
    return sorted(path.name for path in sandbox.path.iterdir())


@workflow
async def line() -> list[str]:
    await put("one")
    await put("two")
    await put("three")
    return await finish()


@workflow
async def oddly() -> list[str]:
    await put("one")
    await odd()
    return await finish()


@workflow
async def sending() -> list[str]:
    await put("one")
    await send()
    return await finish()


@workflow
async def merging() -> list[str]:
    await put("one")
    async with fork(["left", "right"]) as branches:
        await branches.map(put)
        await branches[0].adopt()
        await branches[1].adopt()
    return await finish()
