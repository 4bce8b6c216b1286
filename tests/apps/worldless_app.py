"""Steps that leave their worlds alone, and steps that use them where the compiler cannot see it."""

from __future__ import annotations

import importlib

from worldless_tools import TOOLS, Task, path_later

from ramify import Sandbox, current_sandbox, step, workflow


@step
async def alone(number: int) -> int:
    return number + 1


@step
async def shown() -> str:
    return current_sandbox().path.name


async def run_there() -> str:
    raise NotImplementedError  # the test puts code here that the compiler knows nothing of


look_there = leave_a_task_there = run_there


def read_there() -> str:
    raise NotImplementedError


@step
async def runs() -> str:
    return await run_there()


@step
def runs_in_a_thread() -> str:
    return read_there()


@step
async def looks() -> str:
    return await look_there()


@step
async def leaves_a_task() -> str:
    await leave_a_task_there()
    return "left"


@step
async def calls_a_tool(name: str) -> str:
    return await TOOLS[name]()


@step
async def calls_an_object(task) -> str:  # type: ignore[no-untyped-def]
    return str(await task.work())


@step
async def finds_code() -> str:
    return str(await getattr(importlib.import_module("worldless_tools"), "path_of_" + "world")())


@step
async def calls_a_value() -> str:
    return await path_later()


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


@workflow
async def uses_unseen() -> list[str]:
    found = [await calls_a_tool("path"), await calls_an_object(Task(1))]
    return [*found, await finds_code(), await calls_a_value()]
