"""A workflow whose process stops itself, as a frozen container is stopped, if `STOPS` names the place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from ramify import Runtime, step, workflow

OUTBOX = "STOPPED_APP_OUTBOX"
STOPS = "STOPPED_APP_STOPS"


def _stop_at(place: str) -> None:
    if os.environ.get(STOPS) == place:
        os.kill(os.getpid(), signal.SIGSTOP)


@step
async def write(n: int) -> int:
    if n == 2:
        _stop_at("in a step")
    return n


@step(effect="irreversible")
async def send(n: int) -> str:
    with Path(os.environ[OUTBOX]).open("a") as outbox:  # noqa: ASYNC230
        outbox.write(f"{n}\n")
    return "sent"


@workflow
async def report() -> str:
    total = 0
    for n in range(4):
        total += await write(n)
    if os.environ.get(STOPS) == "idle":
        await asyncio.to_thread(_stop_at, "idle")
        await asyncio.sleep(600)
    return f"{await send(total)} {total}"


async def main(home: str, database: str) -> None:
    async with Runtime(home=Path(home), database=database, sandbox="copy") as runtime:
        print(await runtime.run(report))


if __name__ == "__main__":
    from stopped_app import report  # the module by the name under which its workflow is found again

    asyncio.run(main(*sys.argv[1:]))
