"""A workflow that another machine can continue. With `MOVING_APP_WAITS` it stops for ever after its second step."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ramify import Runtime, Sandbox, step, workflow

WAITS = "MOVING_APP_WAITS"
LOG = "MOVING_APP_LOG"


@step
async def add(sandbox: Sandbox, word: str) -> int:
    with Path(os.environ[LOG]).open("a") as log:  # noqa: ASYNC230
        log.write(f"{word}\n")
    path = sandbox.path / "words"
    path.write_text((path.read_text() if path.exists() else "") + f"{word}\n")
    return len(path.read_text())


@step(effect="readonly")
async def read(sandbox: Sandbox) -> str:
    return (sandbox.path / "words").read_text()


@workflow
async def words() -> str:
    await add("one")
    await add("two")
    if WAITS in os.environ:
        await asyncio.sleep(600)
    await add("three")
    return await read()


async def main(home: str, database: str, bucket: str) -> None:
    async with Runtime(home=Path(home), database=database, remote=bucket, sandbox="copy") as runtime:
        await runtime.run(words)


if __name__ == "__main__":
    from moving_app import words  # the module by the name under which its workflow is found again

    asyncio.run(main(*sys.argv[1:]))
