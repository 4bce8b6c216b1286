"""What `constructs_app` holds, in workflows that are not async: nothing is awaited, each call waits by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from typing import Any

import constructs_app as made
from constructs_app import Told, breaks, look, measured, note, send, works_at_last, write, write_in_a_thread

from ramify import SyncSandbox, current_sandbox, fork, interrupt, llm, step, workflow
from ramify.runtime.errors import NotInARun

HOLDS: list[str] = ["at first"]
HOLDING, LEFT, OVER = threading.Event(), threading.Event(), threading.Event()
THREADS: list[threading.Thread] = []
TOLD: list[str] = []


def agent(name: str) -> Any:
    note(name, "one ")
    return note(name, "two ")


async def both() -> list[Told]:
    return await asyncio.gather(measured(Told(("a",), 1)), measured(Told(("b",), 2)))


@step
def asks_the_model(sandbox: SyncSandbox) -> str:
    """A step that is not async may call the model, and other steps as parts of it."""
    made.begun("thought")
    thought: Any = llm.chat("inside a step")
    (sandbox.path / "thought").write_text(thought.text)
    found: Any = current_sandbox()
    assert found.run("cat thought", check=True).stdout == thought.text
    return str(write_in_a_thread("inside"))


@workflow
def inner(name: str) -> Any:
    return write(name)


@workflow
def many(names: list[str]) -> Generator[Any, None, None]:
    for name in names:
        yield write(name)


@workflow
async def awaits(name: str) -> list[str]:
    """An async workflow with parts that are not."""
    return [await inner(name), *[item async for item in many.stream([f"{name}1", f"{name}2"])]]


@workflow
def everything(rounds: int) -> dict[str, object]:
    seen: list[Any] = []
    for at in range(rounds):
        seen.append(write(f"even{at}") if at % 2 == 0 else write_in_a_thread(f"odd{at}"))
    seen.append(works_at_last("flaky"))
    try:
        breaks()
    except ValueError:
        seen.append("caught")
    seen += asyncio.run(both())
    seen += [inner("inner"), inner.invoke("invoked"), list(many.stream(["first", "second"])), awaits("awaited")]
    seen += [agent("x"), agent("y"), asks_the_model()]
    with fork(["left", "right"]) as branches:
        outcomes: Any = branches.map(write)
        for outcome in outcomes:
            outcome.adopt()
        with branches[0].enter():
            write("nobody's")
    thought: Any = llm.chat("and now?")
    answer: Any = interrupt("send it?")
    if answer:
        seen.append(send(thought.text))
    return {"seen": seen, "files": look()}


@workflow
def in_a_pool(names: list[str]) -> list[str]:
    """Threads of the workflow's own are given its context by hand."""
    with ThreadPoolExecutor(2) as pool:
        return [made.result() for made in [pool.submit(copy_context().run, write, name) for name in names]]


@step(effect="pure")
def leaves_a_thread() -> None:
    """It goes on after the step, and asks for the model then."""
    context = copy_context()

    def late() -> None:
        OVER.wait(30)
        try:
            context.run(llm.chat, "late")
        except NotInARun as error:
            TOLD.append(str(error))

    THREADS.append(threading.Thread(target=late))
    THREADS[-1].start()


@workflow
def does_not_wait() -> list[str]:
    leaves_a_thread()
    OVER.set()
    THREADS.pop().join()
    return TOLD


@step
def holds(sandbox: SyncSandbox) -> None:
    if not HOLDS:
        return
    HOLDING.set()
    while True:
        pass


@workflow
def held() -> list[Any]:
    seen = [write("before")]
    try:
        holds()
        HOLDS.append("never")
    except Exception:  # noqa: BLE001  not what ends a cancelled thread
        HOLDS.append("caught")
    finally:
        LEFT.set()
    return [*seen, write("after")]


@step(effect="pure")
async def leaves() -> None:
    sys.exit(7)


@workflow
def exits() -> None:
    leaves()


@workflow
async def mixes() -> None:
    with fork(["a"]):
        pass


@workflow
async def hands_a_step_to_a_thread() -> None:
    await asyncio.to_thread(write, "a")


@workflow
def reads_in_turn(names: list[str]) -> None:
    for name in many.stream(names):
        write(f"from {name}")


@workflow
async def awaits_in_turn(names: list[str]) -> None:
    async for name in many.stream(names):
        await write(f"from {name}")


@workflow
def returns_too() -> Generator[int, None, int]:
    yield 1
    return 2


@workflow
def pressed() -> Generator[Any, None, None]:
    """Ctrl-C comes while its reader waits for the second item."""
    yield write("first")
    os.kill(os.getpid(), signal.SIGINT)
    OVER.wait()


@workflow
def tidies(fails: str | None) -> Generator[Any, None, None]:
    try:
        yield write("a")
        yield write("never")
    finally:
        write("tidied")
        if fails:
            raise ValueError(fails)


@workflow
def leaves_early() -> None:
    for _ in tidies.stream(None):
        break
    write("after")


@workflow
async def awaits_and_leaves_early(fails: str | None = None) -> None:
    async with aclosing(tidies.stream(fails)) as items:
        async for _ in items:
            break
    await write("after")
