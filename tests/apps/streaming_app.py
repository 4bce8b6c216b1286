"""Workflows that yield: `counts` after each of its steps, `passes_on` what another one yields."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ramify import Sandbox, interrupt, step, workflow

BEGUN: list[int] = []


@step
async def touches(sandbox: Sandbox, n: int) -> str:
    BEGUN.append(n)
    (sandbox.path / f"{n}.txt").write_text("here")
    return " ".join(sorted(path.name for path in sandbox.path.glob("?.txt")))


@workflow
async def counts(to: int) -> AsyncGenerator[tuple[int, str], None]:
    for n in range(to):
        yield n, await touches(n)


@workflow
async def passes_on(to: int) -> AsyncGenerator[str, None]:
    async for n, found in counts.stream(to):
        yield f"{n}: {found}"
    yield f"all: {len(await counts(1))}"


@workflow
async def asks() -> AsyncGenerator[str, None]:
    yield await touches(1)
    yield str(await interrupt("go on?"))
    yield await touches(2)


@workflow
async def yields_what_cannot_be_kept() -> AsyncGenerator[object, None]:
    yield object()


@workflow
async def fails() -> AsyncGenerator[int, None]:
    yield 1
    raise ValueError("no more")
