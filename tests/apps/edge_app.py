"""Workflows at the edges: what is cancelled, left behind, out of order, or gives what cannot be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from ramify import Sandbox, fork, interrupt, llm, step, workflow
from ramify.runtime.errors import NotSerialisable
from ramify.runtime.execution.forks import Branches

HOLD: asyncio.Event | None = None  # lets a test decide which of two steps is first
DELAYS: dict[str, float] = {}
STRAY: list[Any] = []


@step
async def touch(sandbox: Sandbox, name: str) -> str:
    (sandbox.path / name).touch()
    return name


@step
async def listing(sandbox: Sandbox) -> list[str]:
    return sorted(p.name for p in sandbox.path.iterdir())


@step
async def slow(sandbox: Sandbox) -> None:
    (sandbox.path / "half").touch()
    await asyncio.sleep(60)


@step(effect="pure")
async def hangs() -> None:
    STRAY[0].set()
    await asyncio.sleep(600)


@step(effect="pure")
async def breaks_beside() -> None:
    await STRAY[0].wait()
    raise ValueError("as it should")


@workflow
async def leaves_a_step(how: str) -> str:
    STRAY.append(asyncio.Event())
    if how == "dropped":
        STRAY.append(hangs())
        return "done"
    if how in ("in a forgotten task", "only listened to"):

        async def helper() -> None:
            await asyncio.gather(hangs())

        forgotten = asyncio.ensure_future(hangs() if how == "only listened to" else helper())
        forgotten.add_done_callback(STRAY.append)
        await STRAY[0].wait()
        return "done"
    task = asyncio.ensure_future(touch("x") if how == "awaited" else hangs())
    if how in ("running", "cancelled"):
        await STRAY[0].wait()
    if how.startswith("cancelled"):
        task.cancel()
    if how == "awaited":
        await task
    STRAY.append(task)
    return "done"


@workflow
async def takes_the_first(how: str) -> str:
    STRAY.append(asyncio.Event())
    if how == "gather":
        with suppress(ValueError):
            await asyncio.gather(hangs(), breaks_beside())
    elif how == "gather of more than may run":
        one, waiting = asyncio.Semaphore(1), [hangs(), hangs()]

        async def limited(begun: Awaitable[None]) -> None:
            async with one:
                await begun

        with suppress(ValueError):
            await asyncio.gather(*map(limited, waiting), breaks_beside())
    elif how == "gather in a gather":

        async def inner() -> None:
            await asyncio.gather(hangs(), return_exceptions=True)
            await hangs()

        with suppress(ValueError):
            await asyncio.gather(inner(), breaks_beside())
    elif how == "wait":
        slow = asyncio.ensure_future(hangs())
        await asyncio.wait([slow, asyncio.ensure_future(touch("x"))], return_when=asyncio.FIRST_COMPLETED)
    elif how == "as_completed":
        for first in asyncio.as_completed([hangs(), touch("x")]):
            await first
            break
    else:
        left = asyncio.ensure_future(hangs())
        await STRAY[0].wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(left), 0)
    return "done"


@workflow
def takes_the_first_without_async() -> str:
    STRAY.append(asyncio.Event())

    async def both() -> None:
        with suppress(ValueError):
            await asyncio.gather(hangs(), breaks_beside())

    asyncio.run(both())
    return "done"


@step
async def odd(sandbox: Sandbox) -> object:
    (sandbox.path / "odd").touch()
    return object()


@step
async def pair(sandbox: Sandbox) -> dict[str, int]:
    return {"z": 1, "a": 2}


@step
async def extend(sandbox: Sandbox, found: list[int]) -> int:
    found.append(len(found))
    return len(found)


@step(effect="pure")
async def think(name: str) -> str:
    await asyncio.sleep(DELAYS.get(name, 0))
    return name


@step
async def outer(sandbox: Sandbox) -> str:
    return await touch("inner")


@step(reuse=True)
async def same(sandbox: Sandbox) -> int:
    (sandbox.path / "same").touch()
    return 1


@step
async def keeps(sandbox: Sandbox) -> None:
    STRAY.append(sandbox)


@workflow
async def cancelled() -> list[str]:
    with suppress(TimeoutError):
        await asyncio.wait_for(slow(), 0.3)  # type: ignore[arg-type]
    return await listing()


@workflow
async def gives_what_cannot_be_kept() -> list[str]:
    with suppress(NotSerialisable):
        await odd()
    return await listing()


@workflow
async def in_the_order_of_a_dict(stop: bool) -> list[str]:
    for name in await pair():
        await touch(name)
    if stop:
        raise RuntimeError("stop here")
    return await listing()


@workflow
async def changes_its_argument() -> list[int]:
    found: list[int] = []
    await extend(found)
    await extend(found)
    return found


async def one(name: str) -> None:
    await touch(await think(name))


@workflow
async def by_timing() -> list[str]:
    await asyncio.gather(one("slow"), one("fast"))
    if STRAY:
        raise RuntimeError("stop here")
    return await listing()


@workflow
async def steps_in_steps() -> list[str]:
    await outer()
    return await listing()


@workflow
async def leaves_a_task_behind() -> list[str]:
    async with fork([1, 2]) as branches:
        task = asyncio.ensure_future(branches[0].run(slow))
        await branches[1].run(listing)
    STRAY.append(task)
    return await listing()


@workflow
async def uses_a_branch_after_its_fork(how: str) -> None:
    async with fork(["x"]) as branches:
        await branches.map(touch)
    await HIDDEN["use"](branches, how)


async def use(branches: Branches[str], how: str) -> None:
    await (branches[0].run(touch, "y") if how == "run" else branches[0].adopt())


HIDDEN = {"use": use}  # from the compiler, which would refuse it


@workflow
async def uses_a_sandbox_after_its_step() -> None:
    await keeps()
    await STRAY.pop().run("touch stray")


@step
async def touches(sandbox: Sandbox, name: str) -> list[str]:
    await sandbox.run(["touch", name], check=True)
    return (await sandbox.run("ls")).stdout.split()


@workflow(deadline="1h")
async def touches_two(name: str) -> list[str]:
    await touches(f"{name}1")
    return await touches(f"{name}2")


@workflow
async def runs_workflows() -> list[list[str]]:
    first = await touches_two("a")
    async with fork(["b", "c"]) as branches:
        found = []
        for branch in branches:
            async with branch.enter():
                found.append(await touches_two(branch.item))
        await branches[1].adopt()
    if STRAY:
        raise RuntimeError("stopped")
    return [first, *found, await touches("d")]


HIDDEN_FLOWS = {"two": touches_two}  # from the compiler, which would refuse it


@step
async def runs_a_workflow() -> Any:
    return await HIDDEN_FLOWS["two"]("x")


@workflow
async def runs_a_workflow_in_a_step() -> Any:
    return await runs_a_workflow()


@workflow(workspace="/nowhere")
async def elsewhere() -> None: ...


@workflow
async def runs_one_of_another_workspace() -> None:
    await elsewhere()


@workflow
async def reuses_unsealed() -> list[list[str]]:
    async with fork([1, 2]) as branches:
        await branches[0].run(same)
        await branches[1].run(same)
        return [await branches[0].run(listing), await branches[1].run(listing)]


@workflow(deadline="50ms")
async def late() -> str:
    await think("late")
    return (await llm.chat("too late")).text


@workflow
async def bad_arguments() -> None:
    await touch("a", "b")  # type: ignore[call-arg]


@workflow(workspace="relative")
async def beside_its_folder(name: str) -> list[str]:
    return await touches(name)


@workflow(workspace="relative")
async def asks_beside_its_folder() -> list[str]:
    return await beside_its_folder(await interrupt("which?"))
