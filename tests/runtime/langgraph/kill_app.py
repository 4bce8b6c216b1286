"""A graph with a durable checkpointer, killed at each of several points and taken up again, in forks of one warm
process. Prints one JSON object a point: how the first process ended, what the second returned, and the log of both.

Usage: kill_app.py FOLDER (sync|async) POINT…
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

import ramify
import ramify.graph
from ramify import Sandbox, llm
from ramify.runtime.events import Event, OpDone
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

MODE = sys.argv[2]
FOLDER, POINT = Path(), ""  # of the trial that this process runs


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def log(line: str) -> None:
    with (FOLDER / "log").open("a") as file:
        file.write(line + "\n")


def die(point: str) -> None:
    if point == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


def node(name: str) -> Any:
    def work(state: State, sandbox: Sandbox) -> State:
        log(f"begin {name}")
        see(sandbox, name)
        first = asyncio.run(llm.chat(f"{name}1")).text
        die(f"in {name}")
        second = asyncio.run(llm.chat(f"{name}2")).text
        log(f"end {name}")
        return {"said": [first, second]}

    async def awork(state: State, sandbox: Sandbox) -> State:
        log(f"begin {name}")
        see(sandbox, name)
        first = (await llm.chat(f"{name}1")).text
        die(f"in {name}")
        second = (await llm.chat(f"{name}2")).text
        log(f"end {name}")
        return {"said": [first, second]}

    return work if MODE == "sync" else awork


def see(sandbox: Sandbox, name: str) -> None:
    """Each node leaves a file that says which files it found."""
    found = sorted(path.name for path in sandbox.path.iterdir())
    (sandbox.path / name).write_text(" ".join(found))


def after_b(state: State) -> list[str]:
    die("after b, before its writes")
    return ["l", "r"]


def script(request: ChatRequest) -> str:
    log(f"model {request.messages[-1].content}")
    return f"about {request.messages[-1].content}"


def observe(event: Event) -> None:
    if isinstance(event, OpDone) and not event.replayed:
        die(f"{event.row.kind} {event.row.step or event.row.summary}")


def build() -> StateGraph[State]:
    graph = StateGraph(State)
    for name in ("a", "b", "l", "r", "z"):
        graph.add_node(name, node(name))
    graph.add_edge(START, "a").add_edge("a", "b").add_conditional_edges("b", after_b, ["l", "r"])
    return graph.add_edge(["l", "r"], "z")


def work(folder: Path, point: str) -> dict[str, Any]:
    global FOLDER, POINT
    FOLDER, POINT = folder, point
    client = LLMClient("http://model.test/v1", transport=ScriptedModel(script))
    config: Any = {"configurable": {"thread_id": "1"}}
    with (
        ramify.graph.Saver(folder / "threads.db") as saver,
        ramify.compile(
            build(),
            folder / "workspace",
            checkpointer=saver,
            home=folder / "home",
            sandbox="copy",
            llm=client,
            observer=observe,
            name="kill",
        ) as app,
    ):
        inputs: Any = {"said": []} if saver.get_tuple(config) is None else None
        state = app.invoke(inputs, config) if MODE == "sync" else asyncio.run(app.ainvoke(inputs, config))
        files = {name: ramify.graph.read(app, config, name).decode() for name in "ablrz"}
        return {"said": state["said"], "files": files}


def in_a_fork(folder: Path, point: str) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        (folder / "result").write_text(json.dumps(work(folder, point)))
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def main() -> None:
    for number, point in enumerate(sys.argv[3:]):
        folder = Path(sys.argv[1]) / str(number)
        (folder / "workspace").mkdir(parents=True)
        first = in_a_fork(folder, point)
        second = in_a_fork(folder, "none")
        result = json.loads((folder / "result").read_text()) if second == 0 else None
        log = (folder / "log").read_text().splitlines()
        print(
            json.dumps({"point": point, "first": first, "second": second, "result": result, "log": log}), flush=True
        )


if __name__ == "__main__":
    main()
