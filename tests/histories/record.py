"""Record what `test_histories.py` resumes: `python record.py VERSION` writes `VERSION.tar.gz` beside this file.

Run it once, with the release that is to be recorded, and never overwrite a recording. A recording is a folder with a
home, the workspaces of its runs, the outbox of its effects, and `runs.json`, which names the runs. Paths in the
database begin with `/recorded`; `test_histories.py` replaces that by the folder where it unpacked the recording.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDED = Path("/recorded")

KILLED = {"every_value": "values given", "payments": "check 4", "branches": "attempt ccc", "asks_model": "answered"}


def script(request: Any) -> str:
    return f"answer {request.seed}"


async def run(name: str) -> None:
    import history_app

    from ramify import Runtime
    from ramify.runtime.errors import RunError
    from ramify.serving.client import LLMClient
    from ramify.serving.testing import ScriptedModel

    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(script)) as model,
        Runtime(home=RECORDED / "home", sandbox="copy", llm=model) as runtime,
    ):
        try:
            print(await runtime.run(getattr(history_app, name)))
        except RunError as error:
            print(f"{type(error).__name__}: {error}")


def graph() -> None:
    import history_app

    import ramify.graph

    with ramify.graph.saver(RECORDED / "home") as saver:
        app = history_app.app(RECORDED / "home", RECORDED / "workspace", saver)
        print(app.invoke({"log": [], "customer": None}, {"configurable": {"thread_id": "worlds"}}))


def plain() -> None:
    """Threads and items of LangGraph on our saver and store alone."""
    import history_app
    from langgraph.graph import START, StateGraph

    from ramify.graph import Saver, Store

    def ask(state: history_app.State) -> dict[str, Any]:
        return {"log": [f"asked {history_app.ask_in_graph('Go on?')}"]}

    del START
    builder = StateGraph(history_app.State)
    builder.add_node("ask", ask)
    builder.set_entry_point("ask")
    with Saver(RECORDED / "threads.db") as saver:
        app = builder.compile(checkpointer=saver)
        start = {"log": ["started"], "customer": history_app.Customer(name="Cyd")}
        print(app.invoke(start, {"configurable": {"thread_id": "plain"}}))  # type: ignore[call-overload]
    with Store(RECORDED / "threads.db") as store:
        store.put(("users", "ada"), "likes", {"colour": "red", "n": 3})


def main() -> None:
    version = sys.argv[1]
    target = HERE / f"{version}.tar.gz"
    if target.exists():
        sys.exit(f"{target.name} exists: a recording is never overwritten")
    if RECORDED.exists():
        sys.exit(f"{RECORDED} exists: remove it first")
    RECORDED.mkdir()
    (RECORDED / "workspace").mkdir()
    (RECORDED / "workspace" / "hello.txt").write_text("hello\n")
    shutil.copy(HERE / "history_app.py", RECORDED)
    around = {**os.environ, "HISTORY_OUTBOX": str(RECORDED / "outbox"), "PYTHONPATH": str(RECORDED)}
    runs: dict[str, str] = {}
    for what in ["every_value", "payments", "branches", "asks", "asks_model", "--graph", "--plain"]:
        kill = {"HISTORY_KILL": KILLED[what]} if what in KILLED else {}
        done = subprocess.run(
            [sys.executable, __file__, "--one", what], env=around | kill, cwd=RECORDED, check=False, timeout=300
        )
        wanted = -signal.SIGKILL if what in KILLED else 0
        if done.returncode != wanted:
            sys.exit(f"{what}: exit status {done.returncode}, wanted {wanted}")
    database = sqlite3.connect(RECORDED / "home" / "ramify.db")
    for run_id, name in database.execute("SELECT id, name FROM runs ORDER BY n"):
        runs[name] = run_id
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    (RECORDED / "runs.json").write_text(json.dumps(runs, indent=2))
    subprocess.run(
        ["tar", "--format=posix", "-czf", str(target), "--exclude=__pycache__", "-C", str(RECORDED), "."], check=True
    )
    shutil.rmtree(RECORDED)
    print(target.name, target.stat().st_size, runs)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        sys.path[0] = str(RECORDED)  # the app beside the home is what runs, not the one beside this file
        what = sys.argv[2]
        if what == "--graph":
            graph()
        elif what == "--plain":
            plain()
        else:
            asyncio.run(run(what))
    else:
        main()
