"""Workflows that declare reuse: of steps, of commands inside steps, truly and falsely."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ramify import Sandbox, fork, llm, step, workflow

LOG: Path | None = None  # every execution adds a character
BROKEN: list[str] = []  # while this is not empty, `check` raises


def note(mark: str) -> None:
    assert LOG is not None
    with LOG.open("a") as log:
        log.write(mark)


@step(reuse=True)
async def build(sandbox: Sandbox, name: str) -> str:
    note("b")
    await sandbox.run(f"mkdir -p out && echo {name} > out/{name}", check=True)
    return name


@step(reuse=True)
async def spell(sandbox: Sandbox, value: object) -> str:
    note("s")
    return repr(value)


@workflow
async def spells(value: object) -> str:
    return await spell(value)


@step
async def mark(sandbox: Sandbox, value: str) -> None:
    os.setxattr(sandbox.path / "hello.txt", "user.mark", value.encode())


@step(reuse=True)
async def marked(sandbox: Sandbox) -> str:
    note("m")
    return os.getxattr(sandbox.path / "hello.txt", "user.mark").decode()


@workflow
async def attributes(value: str) -> str:
    await mark(value)
    return await marked()


@step
async def look(sandbox: Sandbox) -> list[str]:
    return sorted(str(p.relative_to(sandbox.path)) for p in sandbox.path.rglob("*") if p.is_file())


@workflow
async def builds(name: str) -> list[str]:
    await build(name)
    return await look()


@step
async def tool(sandbox: Sandbox, name: str) -> str:
    assert LOG is not None
    first = await sandbox.run(f"echo {name} > made; echo c >> {LOG}; cat made", check=True, reuse=True)
    second = await sandbox.run("cp made copy; export SEEN=yes", check=True, reuse=True)
    shown = await sandbox.run("cat copy; echo $SEEN", check=True)
    return first.stdout + second.stdout + shown.stdout


@workflow
async def tools(name: str) -> list[str]:
    said = await tool(name)
    return [said, *await look()]


@workflow
async def tools_at_once() -> list[str]:
    async with fork(["x", "x", "y"]) as branches:
        outcomes = await branches.map(tool)
    return [str(outcome.value) for outcome in outcomes]


@step(reuse=True)
async def lies(sandbox: Sandbox, kind: str) -> int:
    note("l")
    assert LOG is not None
    count = len(LOG.read_text())
    if kind == "world":
        (sandbox.path / "count").write_text(str(count))
        return 0
    return count


@step(reuse=True)
async def asks(sandbox: Sandbox, question: str) -> str:
    note("q")
    return (await llm.chat(question)).text


@workflow
async def asking(question: str) -> str:
    return await asks(question)


@workflow
async def lying(kind: str) -> int:
    return await lies(kind)


@workflow
async def lying_among_others(kind: str) -> list[int]:
    async with fork([kind, "other"]) as branches:
        outcomes = await branches.map(lies, errors="return")
    return [outcome.value for outcome in outcomes if outcome.error is None]


@step
async def slow_tool(sandbox: Sandbox) -> str:
    assert LOG is not None
    done = await sandbox.run(f"echo c >> {LOG}; sleep 0.3; echo done", check=True, reuse=True)
    return done.stdout


@workflow
async def slowly() -> list[str]:
    async with fork([1, 2]) as branches:
        got = await asyncio.gather(*(branch.run(slow_tool) for branch in branches))
    return list(got)


@step(effect="pure")
async def check() -> None:
    if BROKEN:
        raise RuntimeError(BROKEN[0])


@workflow
async def builds_then(name: str) -> list[str]:
    await build(name)
    await check()
    await build(f"{name}{name}")
    return await look()


@step
async def start_one(sandbox: Sandbox) -> None:
    await sandbox.run("sleep 600 & true", check=True)
    await sandbox.run("uname -s", check=True, reuse=True)


@step(reuse=True)
async def starts(sandbox: Sandbox) -> None:
    note("s")
    await sandbox.run("sleep 600 & true", check=True)


@workflow
async def live(beside: str) -> None:
    if beside == "in":
        await starts()
    else:
        await start_one()
        await build("beside")


MEANWHILE: list[Callable[[], object]] = []  # what happens while a step goes on


@step
async def given_up(sandbox: Sandbox) -> str:
    """A command that may be reused, and does not come to its end."""
    await sandbox.run("echo before > before", check=True)
    with suppress(TimeoutError):
        await asyncio.wait_for(sandbox.run("sleep 60", reuse=True), 0.5)
    for each in MEANWHILE:
        await asyncio.to_thread(each)
    return (await sandbox.run("cat before")).stdout


@workflow
async def gives_up() -> list[str]:
    return [await given_up(), *await look()]
