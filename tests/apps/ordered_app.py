"""Concurrent tasks that make equal calls in an order that depends on how long their steps take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from ramify import Sandbox, fork, interrupt, llm, step, workflow
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

LOG = Path(__file__)  # tests set it: lines of what was done, and of who got what


def log(text: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{text}\n")


def client() -> LLMClient:
    """A model whose answers to equal prompts differ."""

    async def answer(_: ChatRequest) -> str:
        log("asked")
        said = LOG.read_text().splitlines().count("asked")
        await asyncio.sleep(0.05 * (said % 2))
        return str(said)

    return LLMClient("http://model.test/v1", transport=ScriptedModel(answer))


@step(effect="pure")
async def work(name: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    log(f"work {name}")
    return name


@step(effect="irreversible", idempotent=True)
async def nid() -> int:
    log("nid")
    return LOG.read_text().splitlines().count("nid")


@step
async def look() -> int:
    log("look")
    return LOG.read_text().splitlines().count("look")


async def one(name: str, pauses: list[float]) -> list[int | str]:
    """A chain: a slow step, an equal call, and again. What it gets is told outside, in every process."""
    out: list[int | str] = []
    for at, pause in enumerate(pauses):
        await work(f"{name}{at}", pause)
        out.append(await (nid() if (at + len(name)) % 3 else look()))
        log(f"got {name}{at} {out[-1]}")
    return out


Tasks = list[tuple[str, list[float]]]
Result = list[list[int | str]]


async def gathered(tasks: Tasks) -> Result:
    return list(await asyncio.gather(*(one(*task) for task in tasks)))


async def grouped(tasks: Tasks) -> Result:
    async with asyncio.TaskGroup() as group:
        begun = [group.create_task(one(*task)) for task in tasks]
    return [task.result() for task in begun]


async def limited(tasks: Tasks) -> Result:
    places = asyncio.Semaphore(2)

    async def in_turn(name: str, pauses: list[float]) -> list[int | str]:
        async with places:
            return await one(name, pauses)

    return list(await asyncio.gather(*(in_turn(*task) for task in tasks)))


async def as_they_come(tasks: Tasks) -> Result:
    out: Result = []
    for at, coming in enumerate(asyncio.as_completed([one(*task) for task in tasks])):
        got = await coming
        out.append([*got, await nid()])
        log(f"got after{at} {out[-1]}")
    return out


async def first_of_them(tasks: Tasks) -> Result:
    left = {asyncio.ensure_future(one(*task)) for task in tasks}
    out: Result = []
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        out += sorted(task.result() for task in done)
        out.append([await nid()])
        log(f"got after{len(out)} {out[-1]}")
    return out


async def queued(tasks: Tasks) -> Result:
    queue: asyncio.Queue[tuple[str, list[float]]] = asyncio.Queue()
    for task in tasks:
        queue.put_nowait(task)
    out: Result = []

    async def worker(mine: str) -> None:
        while not queue.empty():
            name, pauses = queue.get_nowait()
            log(f"got {name} {mine}")
            out.append(await one(name, pauses))

    await asyncio.gather(*(worker(f"worker{number}") for number in range(2)))
    return out


async def of_all_kinds(tasks: Tasks) -> Result:
    """Equal calls of a step, of a model and of a person, each after a step of another length."""

    async def mixed(name: str, pauses: list[float]) -> list[int | str]:
        out: list[int | str] = []
        for at, pause in enumerate(pauses):
            await work(f"{name}{at}", pause)
            kind = (at + len(name)) % 3
            answer = [nid, _model, _person][kind]()
            out.append(await answer)
            log(f"got {name}{at} {out[-1]}")
        return out

    return list(await asyncio.gather(*(mixed(*task) for task in tasks)))


async def _model() -> str:
    return (await llm.chat("a number")).text


async def _person() -> str:
    return str(await interrupt("which?"))


async def forked(tasks: Tasks) -> Result:
    """Equal forks of several tasks."""

    async def in_branches(name: str, pauses: list[float]) -> list[int | str]:
        await work(name, pauses[0])
        async with fork(["left", "right"]) as branches:
            seen = await asyncio.gather(*(branch.run(look) for branch in branches))
        log(f"got {name} {seen}")
        return [*seen]

    return list(await asyncio.gather(*(in_branches(*task) for task in tasks)))


SHAPES: dict[str, Callable[[Tasks], Awaitable[Result]]] = {
    shape.__name__: shape
    for shape in (gathered, grouped, limited, as_they_come, first_of_them, queued, of_all_kinds, forked)
}


@workflow
async def flow(shape: str, tasks: Tasks) -> Result:
    return await SHAPES[shape](tasks)


@step(effect="irreversible")
async def pay(name: str, sandbox: Sandbox) -> str:
    log(f"pay {name}")
    await sandbox.run(f"echo {name} >> paid", check=True)
    return name


@step
async def fails_once() -> None:
    if not LOG.with_name("failed").exists():
        LOG.with_name("failed").touch()
        raise OSError("not yet")


@workflow
async def paying() -> list[str]:
    async def paid(name: str, pause: float) -> str:
        await work(name, pause)
        return await pay(name)

    out = await asyncio.gather(paid("ada", 0.3), paid("bob", 0.0))
    await fails_once()
    return list(out)
