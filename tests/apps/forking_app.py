"""A workflow whose step leaves a forked child alive, started or resumed in a process of its own.

Usage: forking_app.py HOME KIND run|die [DATABASE]    run to the end, or be killed after the child was made
       forking_app.py HOME KIND resume RUN [DATABASE]
Prints one JSON object a line: {"run": id}, {"child": pid}, then {"result": …} or {"error": …}. The child lives until
it is killed. What waits for a process does so for an hour, so that a test which passes was not held up by the child.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import ramify.sandboxes.host.agent_link
import ramify.sandboxes.host.fork_server_client
from ramify import Runtime, Sandbox, step, workflow
from ramify.runtime.events import Event, RunStarted

FOR_EVER_S = 3600.0
HELD: list[Any] = []  # what a step leaves behind
HOME, KIND, HOW = Path(sys.argv[1] if len(sys.argv) > 1 else "."), "", ""


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def sleep_for_ever() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(FOR_EVER_S)


def leave_child(kind: str) -> int:
    """A child of this kind, alive when this returns; its pid."""
    if kind == "os.fork":
        if (pid := os.fork()) == 0:
            sleep_for_ever()
            os._exit(0)
        return pid
    if kind == "process":
        child = multiprocessing.get_context("fork").Process(target=sleep_for_ever, daemon=True)
        child.start()
        HELD.append(child)
        assert child.pid is not None
        return child.pid
    if kind == "pool":
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        HELD.append(pool)
        return pool.submit(os.getpid).result()
    assert kind == "exec"
    program = subprocess.Popen(["sleep", str(FOR_EVER_S)], close_fds=False)
    HELD.append(program)
    return program.pid


@step
async def look(sandbox: Sandbox) -> str:
    return (await sandbox.run("echo seen; cat hello.txt 2>/dev/null")).stdout


@step
async def spawn(kind: str) -> int:
    return leave_child(kind)


@step
def spawn_in_thread(kind: str) -> int:
    return leave_child(kind)


@step
async def die_if_asked() -> str:
    if HOW == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@workflow
async def forking(kind: str, threaded: bool) -> list[str]:
    before = await look()
    child = await (spawn_in_thread(kind) if threaded else spawn(kind))
    if not (HOME / "told").exists():
        say(child=child)
        (HOME / "told").touch()
    return [before, await die_if_asked(), await look()]


def hear(event: Event) -> None:
    if isinstance(event, RunStarted):
        say(run=event.run.id)


async def main(run: str | None, database: str | None) -> None:
    async with Runtime(home=HOME, sandbox="copy", database=database, observer=hear) as runtime:
        if run is None:
            kind, _, threaded = KIND.partition("+")
            result = await runtime.run(forking, kind, bool(threaded))
        else:
            result = await runtime.resume(run)
    say(result=result)


if __name__ == "__main__":
    ramify.sandboxes.host.fork_server_client.PATIENCE_S = ramify.sandboxes.host.agent_link.PATIENCE_S = FOR_EVER_S
    HOME.mkdir(parents=True, exist_ok=True)
    KIND, HOW, *rest = sys.argv[2:]
    resumed = rest.pop(0) if HOW == "resume" else None
    try:
        asyncio.run(main(resumed, rest[0] if rest else None))
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        raise
    finally:
        sys.stdout.flush()
    os._exit(0)  # Python itself waits for a pool's children
