"""Code that uses the world of the step that calls it, and that the compiler takes for the standard library's."""

from __future__ import annotations

import asyncio

left: list[asyncio.Future[object]] = []


async def run_there() -> str:
    from ramify import current_sandbox

    return str((await current_sandbox().run("echo kept > file; cat file")).stdout)


def read_there() -> str:
    from ramify import current_sandbox

    return (current_sandbox().path / "file").read_text()


async def look_there() -> str:
    from ramify import current_sandbox

    return str(current_sandbox().path)


async def leave_a_task_there() -> None:
    from ramify import current_sandbox

    left.append(asyncio.ensure_future(current_sandbox().run("echo late > file")))
    for _ in range(10):  # the world is asked for, and not there yet
        await asyncio.sleep(0)


for _each in (run_there, read_there, look_there, leave_a_task_there):
    _each.__module__ = "functools"
