"""Steps that leave their worlds alone, and steps that use them where the compiler cannot see it."""

from __future__ import annotations

import asyncio

import ramify
from ramify import Sandbox, current_sandbox, step, workflow


@step
async def alone(number: int) -> int:
    return number + 1


@step
async def shown() -> str:
    return current_sandbox().path.name


@step
async def runs() -> str:
    world = getattr(ramify, "current_" + "sandbox")()
    return str((await world.run("echo kept > file; cat file")).stdout)


@step
def runs_in_a_thread() -> str:
    world = getattr(ramify, "current_" + "sandbox")()
    return (world.path / "file").read_text()


@step
async def looks() -> str:
    return str(getattr(ramify, "current_" + "sandbox")().path)


@step
async def leaves_a_task() -> str:
    world = getattr(ramify, "current_" + "sandbox")()
    _tasks.append(asyncio.ensure_future(world.run("echo late > file")))
    for _ in range(10):  # the world is asked for, and not there yet
        await asyncio.sleep(0)
    return "left"


_tasks = list[asyncio.Future[object]]()


@step
async def takes(sandbox: Sandbox) -> str:
    return sandbox.path.name


@step
async def calls_a_step() -> str:
    return await takes()


@workflow
async def counts() -> int:
    return await alone(await alone(1))


@workflow
async def shows() -> str:
    return await shown() + await calls_a_step()


@workflow
async def uses() -> list[str]:
    return [await runs(), await runs_in_a_thread()]


@workflow
async def fails() -> str:
    return await looks()


@workflow
async def leaves() -> str:
    await leaves_a_task()
    return await takes()
