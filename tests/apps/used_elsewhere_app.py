"""Opens a Runtime, a saver, an app and a client, and uses each of them in a forked child: what each use says, one
JSON pair a line. A child that waits for ever is ended, and its pair is missing."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import StateGraph

import ramify
from ramify import Runtime, Sandbox, SyncSandbox, step, workflow
from ramify.runtime.langgraph.checkpointer import Saver
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest, user

PATIENCE_S = 60  # with a child; of one that waits for ever, standard error shows where


class State(TypedDict, total=False):
    n: int


@step(effect="pure")
async def sum_of(a: int, b: int) -> int:
    return a + b


@workflow
async def add(a: int, b: int) -> int:
    return await sum_of(a, b)


USES: list[str] = [
    "Runtime.run",
    "Runtime.resume",
    "Runtime.journal",
    "a workflow under it",
    "closing it",
    "a step",
    "a world",
    "a world's blocking face",
    "a saver that reads",
    "a saver that writes",
    "an app",
    "a model client",
    "a Runtime of its own",
]


def in_child(use: str, do: Callable[[], Any]) -> None:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        try:
            said = f"gave {do()!r}"
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what the use says
            said = f"{type(error).__name__}: {error}"
        print(json.dumps([use, said]), flush=True)
    finally:
        os._exit(0)


@step
async def of_a_step(sandbox: Sandbox) -> int:
    async def world() -> object:
        return await sandbox.run("true")

    async def inner() -> object:
        return await sum_of(1, 2)

    await sandbox.run("true")
    in_child("a world", lambda: asyncio.run(world()))
    in_child("a step", lambda: asyncio.run(inner()))
    in_child("a Runtime of its own", lambda: asyncio.run(own()))
    return (await sandbox.run("true")).exit_code


@step
def blocking(sandbox: SyncSandbox) -> int:
    in_child("a world's blocking face", lambda: sandbox.run("true"))
    return sandbox.run("true").exit_code


async def own() -> int:
    async with Runtime(home=Path(sys.argv[1], "own"), sandbox="copy") as runtime:
        result: int = await runtime.run(add, 2, 3)
        return result


@workflow
async def whole() -> list[int]:
    return [await of_a_step(), await blocking()]


async def main(folder: Path) -> None:
    saver = Saver(folder / "saver.db")
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("one", lambda state: {"n": 1})
    graph.set_entry_point("one")
    app = ramify.compile(graph, home=folder / "app", sandbox="copy", checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    await asyncio.to_thread(app.invoke, {"n": 0}, config)
    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(lambda _: "hi")) as client,
        Runtime(home=folder / "home", sandbox="copy") as runtime,
    ):
        await runtime.run(add, 2, 3)
        run = runtime.last_run_id
        assert run is not None
        request = ChatRequest(messages=user("hi"))
        await client.chat(request)
        in_child("Runtime.run", lambda: asyncio.run(runtime.run(add, 2, 3)))
        in_child("Runtime.resume", lambda: asyncio.run(runtime.resume(run)))
        in_child("Runtime.journal", lambda: asyncio.run(runtime.journal()))
        in_child("a workflow under it", lambda: add.invoke(2, 3))
        in_child("closing it", lambda: asyncio.run(runtime.__aexit__(None, None, None)))
        in_child("a saver that reads", lambda: saver.get_tuple(config))
        found = saver.get_tuple(config)
        assert found is not None
        in_child(
            "a saver that writes",
            lambda: saver.put_writes(found.config, [("n", 2)], "task"),
        )
        in_child("an app", lambda: app.invoke({"n": 0}, {"configurable": {"thread_id": "u"}}))
        in_child("a model client", lambda: asyncio.run(client.chat(request)))
        assert await runtime.run(whole) == [0, 0]
        print(f"parent: gave {await runtime.run(add, 2, 3)}", file=sys.stderr)
        assert saver.get_tuple(config) == found, "what a child tried to write is not there"
        assert await asyncio.to_thread(app.invoke, {"n": 0}, {"configurable": {"thread_id": "u"}}) == {"n": 1}
        await client.chat(request)
    app.close()
    saver.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
