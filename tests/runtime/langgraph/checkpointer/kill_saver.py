"""Kill a plain graph under `durability="sync"` at each of several points of its saver, resume it, and print as JSON
which nodes ran more than once. Each trial is two forks of this process.

Usage: kill_saver.py FOLDER (ours|sqlite) (sync|async)
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph

import ramify.graph

WHOSE, MODE = sys.argv[2:4]
POINTS = ["at put_writes", "after put_writes", "at put", "after put", "while a sibling runs"]
CONFIG: Any = {"configurable": {"thread_id": "1"}}
_AT_LAST = 20.0


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Trial:
    def __init__(self, folder: Path, point: str) -> None:
        self.folder, self.point = folder, point
        self.kept: set[str] = set()  # nodes whose writes the saver has taken

    def die(self, point: str) -> None:
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def until_kept(self, node: str) -> None:
        """Wait for the saver's thread: whether it is faster than LangGraph's next step is chance."""
        until = time.monotonic() + _AT_LAST
        while node not in self.kept and time.monotonic() < until:
            time.sleep(0.001)

    def graph(self, saver: Any) -> Any:
        def node(name: str) -> Any:
            def work(state: State) -> State:
                with (self.folder / "log").open("a") as log:
                    log.write(f"{name}\n")
                if name == "r" and self.point == "while a sibling runs":
                    self.until_kept("l")
                    self.die(self.point)
                return {"log": [name]}

            async def awork(state: State) -> State:
                return await asyncio.to_thread(work, state)

            return work if MODE == "sync" else awork

        graph = StateGraph(State)
        for name in ("a", "b", "l", "r", "z"):
            graph.add_node(name, node(name))
        graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "l").add_edge("b", "r")
        return graph.add_edge(["l", "r"], "z").compile(checkpointer=saver)

    def killing(self, kind: Any) -> Any:
        """Return the saver's class, which dies at this trial's point: for the writes of `b`, and the checkpoint that
        supersedes them."""
        trial = self

        def said(writes: Any) -> str:
            return next((value[0] for channel, value in writes if channel == "log"), "")

        class Killing(kind):  # type: ignore[misc]
            def put_writes(self, config: Any, writes: Any, *rest: Any) -> None:
                self._before(writes)
                super().put_writes(config, writes, *rest)
                self._after(writes)

            async def aput_writes(self, config: Any, writes: Any, *rest: Any) -> None:
                self._before(writes)
                await super().aput_writes(config, writes, *rest)
                self._after(writes)

            def put(self, config: Any, checkpoint: Any, *rest: Any) -> Any:
                if is_it := self._supersedes(checkpoint):
                    trial.until_kept("b")
                    trial.die("at put")
                made = super().put(config, checkpoint, *rest)
                if is_it:
                    trial.die("after put")
                return made

            async def aput(self, config: Any, checkpoint: Any, *rest: Any) -> Any:
                if is_it := self._supersedes(checkpoint):
                    await asyncio.to_thread(trial.until_kept, "b")
                    trial.die("at put")
                made = await super().aput(config, checkpoint, *rest)
                if is_it:
                    trial.die("after put")
                return made

            def _before(self, writes: Any) -> None:
                if said(writes) == "b":
                    trial.die("at put_writes")

            def _after(self, writes: Any) -> None:
                trial.kept.add(said(writes))
                if said(writes) == "b":
                    trial.die("after put_writes")

            def _supersedes(self, checkpoint: Any) -> bool:
                return "put" in trial.point.split() and checkpoint["channel_values"].get("log", [])[-1:] == ["b"]

        return Killing

    async def run(self) -> Any:
        path = self.folder / "threads.db"
        async with AsyncExitStack() as stack:
            saver: Any
            if WHOSE == "ours":
                saver = stack.enter_context(self.killing(ramify.graph.Saver)(path, linger_s=0))
            elif MODE == "sync":
                saver = stack.enter_context(self.killing(SqliteSaver).from_conn_string(str(path)))
            else:
                saver = await stack.enter_async_context(self.killing(AsyncSqliteSaver).from_conn_string(str(path)))
            graph = self.graph(saver)
            found = await saver.aget_tuple(CONFIG) if MODE == "async" else saver.get_tuple(CONFIG)
            given = {"log": []} if found is None else None
            if MODE == "async":
                return await graph.ainvoke(given, CONFIG, durability="sync")
            return await asyncio.to_thread(graph.invoke, given, CONFIG, durability="sync")


def in_a_fork(trial: Trial) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        (trial.folder / "result").write_text(json.dumps(asyncio.run(trial.run())))
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def main() -> None:
    found = {}
    for number, point in enumerate(POINTS):
        folder = Path(sys.argv[1]) / f"{WHOSE}-{MODE}-{number}"
        folder.mkdir()
        ends = in_a_fork(Trial(folder, point)), in_a_fork(Trial(folder, "none"))
        ran = Counter((folder / "log").read_text().split())
        result = json.loads((folder / "result").read_text())["log"] if ends[1] == 0 else None
        again = sorted(name for name, times in ran.items() if times > 1)
        found[point] = {"ends": ends, "result": result, "again": again}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    assert threading.active_count() == 1, "it forks"
    main()
