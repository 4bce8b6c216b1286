"""Workflows that ask a person."""

from __future__ import annotations

import asyncio

from ramify import Sandbox, fork, interrupt, step, workflow

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
