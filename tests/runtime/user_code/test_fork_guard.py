"""A child that a step forks holds nothing of the run (no lock, no world, no connection), and does not continue the
run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.warm_process import WarmInterpreter

APP = Path(__file__).parents[2] / "apps" / "forking_app.py"
KINDS = ["os.fork", "os.fork+thread", "process", "process+thread", "pool", "exec"]


@contextmanager
def child_of(lines: list[dict[str, Any]]) -> Iterator[int]:
    """The child that was left behind; alive in the block, killed at the end."""
    (pid,) = [line["child"] for line in lines if "child" in line]
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start(
    interpreter: WarmInterpreter, home: Path, *args: str, database: str = ""
) -> tuple[list[dict[str, Any]], int, str]:
    """Run the app until its process ends. A child may hold its output open, so the output goes to files."""
    done = interpreter.run_file(APP, home, *args, *([database] if database else []), timeout=100)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode, done.stderr


def alive(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_ends_while_a_child_of_it_lives(home: Path, kind: str, warm: WarmInterpreter) -> None:
    lines, status, errors = start(warm, home, kind, "run")
    with child_of(lines) as child:
        assert lines[-1] == {"result": ["seen\n", "alive", "seen\n"]}, errors
        assert status == 0
        assert alive(child)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lock_of_a_killed_run_is_free_while_its_child_lives(home: Path, kind: str, warm: WarmInterpreter) -> None:
    lines, status, _ = start(warm, home, kind, "die")
    with child_of(lines) as child:
        assert status == -signal.SIGKILL
        (run,) = [line["run"] for line in lines if "run" in line]
        assert alive(child)
        again, status, errors = start(warm, home, kind, "resume", run)
        assert again[-1] == {"result": ["seen\n", "alive", "seen\n"]}, errors
        assert status == 0
        assert alive(child)


LEAVING = """
import asyncio, json, os, sys
from pathlib import Path
from ramify import Runtime, Sandbox, step, workflow

HOME, HOW = Path(sys.argv[1]), sys.argv[2]

def log(what):
    with open(HOME / "log", "a") as file:
        file.write(f"{what} {'child' if os.getpid() != PARENT else 'parent'}\\n")

PARENT = os.getpid()
CHILD = 0

def leave():
    if HOW == "raises": raise ValueError("in the child")
    if HOW == "exits": sys.exit(7)
    if HOW == "exits with words": sys.exit("words")
    if HOW == "interrupted": raise KeyboardInterrupt

@step
async def forks() -> int:
    global CHILD
    log("fork")
    await asyncio.sleep(0)
    CHILD = os.fork()
    if CHILD == 0:
        leave()
        if HOW == "waits": await asyncio.sleep(3600)
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(CHILD, 0)[1])

@step
def forks_in_a_thread() -> int:
    global CHILD
    log("fork")
    CHILD = os.fork()
    if CHILD == 0:
        leave()
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(CHILD, 0)[1])

@step(effect="irreversible")
async def charge(n: int) -> int:
    await asyncio.sleep(0)
    log(f"charge {n}")
    await asyncio.sleep(0.05)
    log(f"charged {n}")
    return n

@workflow
async def w() -> list:
    made = forks_in_a_thread() if HOW.endswith("thread") or sys.argv[3:] else forks()
    try:
        return await asyncio.gather(made, charge(1), charge(2))
    finally:
        log("workflow over")

@workflow
async def forks_itself() -> int:
    await charge(1)
    pid = os.fork()
    if pid == 0:
        try:
            await charge(2)
        finally:
            log("in the child")
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def main() -> None:
    async with Runtime(home=HOME, sandbox="copy") as runtime:
        result = await runtime.run(forks_itself if HOW == "workflow" else w)
        rows = [(row.step, row.status.value) for row in await runtime.journal() if row.step]
    log("main over")
    print(json.dumps([result, sorted(rows)]))

asyncio.run(main())
"""


WAYS = [("returns", 1), ("raises", 1), ("exits", 7), ("exits with words", 1), ("interrupted", 130)]


def run_leaving(interpreter: WarmInterpreter, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    home.mkdir()
    script = home / "app.py"
    script.write_text(LEAVING)
    return interpreter.run_file(script, home, *words, timeout=100)


@pytest.mark.parametrize(
    ("how", "status", "thread"),
    [*((*way, thread) for way in WAYS for thread in (False, True)), ("waits", 1, False)],
)
def test_a_child_that_leaves_its_step_is_ended(
    home: Path, warm: WarmInterpreter, how: str, status: int, thread: bool
) -> None:
    """Otherwise it would continue as a second copy of the run: charge again, write to the journal."""
    done = run_leaving(warm, home, how, *(["thread"] if thread else []))
    assert done.returncode == 0, done.stderr
    (result, rows) = json.loads(done.stdout)
    assert result == [status, 1, 2]
    assert rows == [["charge", "done"]] * 2 + [["forks_in_a_thread" if thread else "forks", "done"]]
    log = (home / "log").read_text().splitlines()
    assert [line for line in log if line.endswith("child")] == []
    assert sorted(line.removesuffix(" parent") for line in log) == sorted(
        ["fork", "charge 1", "charge 2", "charged 1", "charged 2", "workflow over", "main over"]
    )
    if how in ("returns", "raises", "waits"):
        assert "a run continues in one process only" in done.stderr
    if how == "raises":
        assert "ValueError: in the child" in done.stderr


def test_a_workflow_that_forks_continues_in_its_parent_only(home: Path, warm: WarmInterpreter) -> None:
    done = run_leaving(warm, home, "workflow")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, [["charge", "done"]]]
    log = (home / "log").read_text().splitlines()
    assert log == ["charge 1 parent", "charged 1 parent", "in the child child", "main over parent"]
    assert "UsedAfterFork" in done.stderr
