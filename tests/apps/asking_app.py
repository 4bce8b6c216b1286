"""Workflows that ask a person."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from ramify import Sandbox, fork, interrupt, step, workflow
from ramify.runtime.execution.forks import Branch

DONE: list[str] = []


@step
async def note(sandbox: Sandbox, text: str) -> list[str]:
    DONE.append(text)
    await sandbox.run(["touch", text], check=True)
    return sorted((await sandbox.run("ls")).stdout.split())


@workflow
async def asks(name: str) -> dict[str, object]:
    await note("before")
    try:
        answer = await interrupt({"really": name})
    except Exception as error:
        raise AssertionError("a question is not for the workflow's handlers") from error
    files = await note("after") if answer["yes"] else []
    return {"answer": answer, "files": files}


@workflow
async def asks_in_a_loop() -> list[str]:
    answers: list[str] = []
    while not answers or answers[-1] != "stop":
        answers.append(await interrupt("more?"))
    return answers


@workflow
async def asks_at_once() -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_ask(word)) for word in ("left", "right")]
    return [task.result() for task in tasks]


async def _ask(word: str) -> str:
    answer: str = await interrupt(word)
    return answer


@workflow
async def asks_on_a_branch() -> list[str]:
    async with fork(["a", "b"]) as branches:
        await branches.map(note)
        async with branches[1].enter():
            answer = await interrupt("adopt b?")
        if answer:
            await branches[1].adopt()
    return await note("end")


@step
async def asking_step() -> None:
    await interrupt("never")


@workflow
async def asks_in_a_step() -> None:
    await asking_step()


class Refused(Exception):
    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"refused with {code}")


BROKEN = [True]  # the outside: while it is true, `fails` does


@step
async def fails(sandbox: Sandbox) -> str:
    DONE.append("fails")
    (sandbox.path / "half").touch()
    if BROKEN[0]:
        raise Refused(7)
    return "done"


@workflow
async def asks_after_a_failure() -> list[object]:
    try:
        said: object = await fails()
    except Refused as error:
        said = error.code
    if await interrupt(f"it said {said}, go on?") == "no":
        raise RuntimeError("stopped")
    return [said, await note("after")]


PAUSE: dict[str, float] = {}  # seconds, before the question of that name is asked: another one in each process
KIND: dict[str, str] = {}  # "sleep", in the workflow itself; "step"; else none


@step
async def thinks(name: str) -> str:
    await asyncio.sleep(PAUSE.get(name, 0.0))
    return name


@step(effect="irreversible")
async def drops(name: str) -> str:
    DONE.append(f"drop {name}")
    return name


async def _asks_to_drop(name: str) -> object:
    if KIND.get(name) == "sleep":
        await asyncio.sleep(PAUSE.get(name, 0.0))
    elif KIND.get(name) == "step":
        await thinks(name)
    answer = await interrupt(f"drop the {name} database?")
    if answer == f"yes, {name}":
        await drops(name)
    return answer


@workflow
async def drops_databases(names: list[str]) -> list[object]:
    return await asyncio.gather(*[_asks_to_drop(name) for name in names])


@workflow
async def drops_in_a_group(names: list[str]) -> list[object]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_asks_to_drop(name)) for name in names]
    return [task.result() for task in tasks]


@workflow
async def drops_and_keeps_errors(names: list[str]) -> list[object]:
    return await asyncio.gather(*[_asks_to_drop(name) for name in names], return_exceptions=True)


@workflow
async def drops_from_a_queue(names: list[str]) -> list[object]:
    queue: asyncio.Queue[str] = asyncio.Queue()
    found: dict[str, object] = {}

    async def work() -> None:
        while name := await queue.get():
            found[name] = await _asks_to_drop(name)
            queue.task_done()

    workers = [asyncio.create_task(work()) for _ in names]
    for name in names:
        queue.put_nowait(name)
    await queue.join()
    for _ in workers:
        queue.put_nowait("")
    await asyncio.gather(*workers)
    return [found[name] for name in names]


@workflow
async def drops_on_branches(names: list[str]) -> list[object]:
    async def one(branch: Branch[str]) -> object:
        async with branch.enter():
            if KIND.get(branch.item) == "step":
                await thinks(branch.item)
            return await interrupt(f"drop the {branch.item} database?")

    async with fork(names) as branches:
        return await asyncio.gather(*[one(branch) for branch in branches])


@workflow
def drops_from_threads(names: list[str]) -> list[object]:
    def one(name: str) -> object:
        if KIND.get(name) == "step":
            thinks(name)
        return interrupt(f"drop the {name} database?")

    with ThreadPoolExecutor(len(names)) as pool:
        asked = [pool.submit(copy_context().run, one, name) for name in names]
        return [each.result() for each in asked]


@workflow
async def asks_beside_work(name: str) -> list[object]:
    async with asyncio.TaskGroup() as group:
        told = group.create_task(_ask("meanwhile?"))
        worked = group.create_task(_works(name))
    return [told.result(), worked.result()]


GO_ON: asyncio.Event = asyncio.Event()


@step(effect="irreversible")
async def waits_outside(name: str) -> str:
    await GO_ON.wait()
    DONE.append(name)
    return name


async def _works(name: str) -> str:
    return await waits_outside(name) + await thinks("after")


@workflow
async def asks_with_cleanup() -> str:
    try:
        answer: str = await interrupt("and then?")
    finally:
        await drops("what is left")
    return answer


@workflow
async def swallows() -> str:
    try:
        await interrupt("swallowed?")
    except BaseException:  # noqa: BLE001  as a careless program does it
        raise ValueError("something else") from None
    return "answered"


WORDS = {"text": "old text?"}


@workflow
async def asks_what_has_changed() -> list[object]:
    return await asyncio.gather(_ask(WORDS["text"]), _ask("another?"))
