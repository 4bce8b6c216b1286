"""Workflows that each show one thing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ramify import Sandbox, SyncSandbox, current_sandbox, fork, step, workflow

FLAG: Path | None = None  # a file outside every world: tells one attempt from the next


@step
async def write(sandbox: Sandbox, name: str, text: str) -> str:
    (sandbox.path / name).write_text(text)
    return name


@step
async def read(sandbox: Sandbox, name: str) -> str:
    return (await sandbox.run(["cat", name], check=True)).stdout


@step
def write_sync(sandbox: SyncSandbox, name: str) -> int:
    return sandbox.run(f"echo sync > {name}", check=True).exit_code


@step
async def unannotated(name: str) -> str:
    return (await current_sandbox().run(["cat", name])).stdout


@step
async def listing(sandbox: Sandbox) -> list[str]:
    return sorted(p.name for p in sandbox.path.iterdir())


@step(retry=1)
async def flaky(sandbox: Sandbox) -> list[str]:
    assert FLAG is not None
    seen = sorted(p.name for p in sandbox.path.iterdir())
    (sandbox.path / "half-done").touch()
    if not FLAG.exists():
        FLAG.touch()
        raise OSError("try again")
    return seen


@step
async def breaks(sandbox: Sandbox) -> None:
    (sandbox.path / "half-done").touch()
    await sandbox.run("echo looking; echo broken >&2; exit 3")
    if FLAG is None or not FLAG.exists():
        raise ValueError("no luck")


@step(timeout=0.3)
async def too_slow(sandbox: Sandbox) -> None:
    await sandbox.run("sleep 60")


@workflow
async def two_writes() -> str:
    await write("a", "one")
    await write("b", "two")
    return await read("a")


@workflow
async def kinds() -> list[str]:
    await write("a", "one")
    await write_sync("s")
    return [await unannotated("a"), await read("s"), *await listing()]


@workflow
async def retried() -> list[str]:
    return await flaky()


@workflow
async def failing() -> list[str]:
    await write("a", "one")
    await breaks()
    return await listing()


@workflow
async def caught() -> list[str]:
    await write("a", "one")
    try:
        await breaks()
    except ValueError:
        await write("b", "after")
    return await listing()


@workflow
async def slow() -> None:
    await too_slow()


@workflow
async def conflict(strategy: str) -> str:
    await write("a", "base")
    async with fork(["left", "right"]) as branches:
        await branches[0].run(write, "a", "left")
        await branches[1].run(write, "a", "right")
        await branches[0].adopt()
        await branches[1].adopt(strategy=strategy)  # type: ignore[arg-type]
    return await read("a")


@workflow
async def some_fail() -> list[str]:
    async with fork(["hello.txt", "missing"]) as branches:
        outcomes = await branches.map(read, errors="return")
        return [type(o.error).__name__ if o.error else o.value for o in outcomes]


async def helper(name: str) -> str:
    return await read(name)


@workflow
async def dynamic(name: str) -> str:
    steps = {"read": read, "helper": helper}
    return await steps[name]("hello.txt")


@step(reuse=True)
async def measure(sandbox: Sandbox) -> int:
    assert FLAG is not None
    with FLAG.open("a") as log:
        log.write("x")
    (sandbox.path / "measured").touch()
    return 7


@workflow
async def reusing() -> list[int]:
    async with fork([1, 2, 3]) as branches:
        await asyncio.gather(*(b.run(write, "same", "text") for b in branches))
        got = await asyncio.gather(*(b.run(measure) for b in branches))
        await branches[2].adopt()
    await write("other", "state")
    return [*got, await measure()]


@workflow
async def nothing_to_import() -> list[str]:
    return await listing()


@step
async def nested_fork(sandbox: Sandbox) -> None:
    async with fork([1]):
        pass


@workflow
async def forks_in_a_step() -> None:
    await nested_fork()
