"""Kill a graph with a durable checkpointer at each of several points and resume it, in forks of one warm process.
Print one JSON object per point: how the first process ended, what the second returned, and the log of both.

Usage: kill_app.py FOLDER (sync|async) (graph|entrypoint|fork|subgraph) POINT…

`entrypoint` runs the same nodes as tasks of a function. `fork` goes back to before `a` and is killed after that. In
`subgraph`, `b` is in a graph that a node calls.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import signal
import sqlite3
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph

import ramify
import ramify.graph
from ramify import Sandbox, llm
from ramify.runtime.events import Event, OpDone
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

MODE, WHAT = sys.argv[2:4]
FOLDER, POINT = Path(), ""  # set to the trial that this process runs


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

    made = work if MODE == "sync" else awork
    made.__name__ = name
    return made


def see(sandbox: Sandbox, name: str) -> None:
    """Write a file that lists the files that the node found."""
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
        graph.add_node(name, calling(name) if (name, WHAT) == ("b", "subgraph") else node(name))
    graph.add_edge(START, "a").add_edge("a", "b").add_conditional_edges("b", after_b, ["l", "r"])
    return graph.add_edge(["l", "r"], "z")


def calling(name: str) -> Any:
    """A node whose code runs a graph of one node."""
    inner = StateGraph(State).add_node(name, node(name)).add_edge(START, name).compile()

    def call(state: State) -> State:
        return {"said": inner.invoke({"said": []})["said"]}

    async def acall(state: State) -> State:
        return {"said": (await inner.ainvoke({"said": []}))["said"]}

    return call if MODE == "sync" else acall


def as_entrypoint() -> Any:
    """The same nodes as tasks of an entrypoint."""
    a, b, left, right, z = (task(node(name)) for name in ("a", "b", "l", "r", "z"))

    @entrypoint()
    def flow(_: Any) -> State:
        said = a({}).result()["said"] + b({}).result()["said"]  # type: ignore[call-arg]
        die("after b, before its writes")
        sides = [left({}), right({})]  # type: ignore[call-arg]
        said += [line for side in sides for line in side.result()["said"]]
        return {"said": said + z({}).result()["said"]}  # type: ignore[call-arg]

    @entrypoint()
    async def aflow(_: Any) -> State:
        said = (await a({}))["said"] + (await b({}))["said"]
        die("after b, before its writes")
        for side in await asyncio.gather(left({}), right({})):
            said += side["said"]
        return {"said": said + (await z({}))["said"]}

    return flow if MODE == "sync" else aflow


def work(folder: Path, point: str) -> dict[str, Any]:
    global FOLDER, POINT
    FOLDER, POINT = folder, point if WHAT != "fork" else ""
    client = LLMClient("http://model.test/v1", transport=ScriptedModel(script))
    config: Any = {"configurable": {"thread_id": "1"}}
    with (
        ramify.graph.Saver(folder / "threads.db") as saver,
        ramify.compile(
            as_entrypoint() if WHAT == "entrypoint" else build(),
            folder / "workspace",
            checkpointer=saver,
            home=folder / "home",
            sandbox="copy",
            llm=client,
            observer=observe,
            name="kill",
        ) as app,
    ):

        def invoke(given: Any, at: Any) -> Any:
            return app.invoke(given, at) if MODE == "sync" else asyncio.run(app.ainvoke(given, at))

        is_first = saver.get_tuple(config) is None
        if is_first and WHAT == "fork":
            invoke({"said": []}, config)
            (folder / "log").unlink()
            POINT = point
            state = invoke(None, next(one.config for one in app.get_state_history(config) if one.next == ("a",)))
        else:
            state = invoke({"said": []} if is_first else None, config)
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


def forks_with_one_key(folder: Path) -> list[str]:
    query = "SELECT key FROM ops WHERE kind IN ('FORK', 'MERGE', 'RELEASE') GROUP BY key HAVING count(*) > 1"
    with closing(sqlite3.connect(folder / "home" / "ramify.db")) as database:
        return [key for (key,) in database.execute(query)]


def main() -> None:
    for number, point in enumerate(sys.argv[4:]):
        folder = Path(sys.argv[1]) / str(number)
        (folder / "workspace").mkdir(parents=True)
        first = in_a_fork(folder, point)
        second = in_a_fork(folder, "none")
        result = json.loads((folder / "result").read_text()) if second == 0 else None
        log = (folder / "log").read_text().splitlines()
        told = {"first": first, "second": second, "result": result, "log": log, "twice": forks_with_one_key(folder)}
        print(json.dumps({"point": point, **told}), flush=True)


if __name__ == "__main__":
    main()
