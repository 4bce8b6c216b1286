"""Threads of synchronous steps: their results and errors are passed on, and nobody waits for cancelled ones."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify.runtime.errors import NotInARun
from ramify.runtime.user_code.worker_threads import Abandoned, in_thread, start_on_run_loop

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("SEEN")
CTRL_C = """
import time
from pathlib import Path
from ramify import step, workflow

@step(effect="pure")
def sleeps(flag: str) -> None:
    Path(flag).touch()
    time.sleep(600)

@workflow
async def sleepy(flag: str) -> None:
    await sleeps(flag)
"""


async def test_results_errors_and_context_are_passed() -> None:
    SEEN.set("here")
    assert await in_thread(lambda more: SEEN.get() + more, "!") == "here!"
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


async def test_a_cancelled_call_ends_at_its_next_instruction() -> None:
    begun, ended = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        try:
            while True:
                pass
        finally:
            ended.set()

    task = asyncio.ensure_future(in_thread(busy))
    assert await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 10)


@pytest.fixture
def switching() -> Iterator[None]:
    """Switch threads more often, because checking a thread that never waits takes as long as its turn."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("switching")
async def test_a_cancelled_call_leaves_no_lock_of_a_library_held() -> None:
    """If `Abandoned` were raised between taking a lock and the `try` that releases it, the next user would wait for
    ever."""
    for _ in range(16):
        turns, thread = queue.Queue[int](), queue.Queue[threading.Thread]()

        def busy(turns: queue.Queue[int] = turns, thread: queue.Queue[threading.Thread] = thread) -> None:
            thread.put(threading.current_thread())
            while True:
                turns.put(1)
                turns.get()

        task = asyncio.ensure_future(in_thread(busy))
        begun = await asyncio.to_thread(thread.get)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(begun.join)
        assert turns.mutex.acquire(blocking=False)


async def test_a_cancelled_call_that_waits_for_the_run_gets_no_answer() -> None:
    begun, seen = asyncio.Event(), list[BaseException]()
    ended = threading.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    def asks() -> None:
        try:
            start_on_run_loop("long()", long)
        except BaseException as error:
            seen.append(error)
            raise
        finally:
            ended.set()

    task = asyncio.ensure_future(in_thread(asks))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(ended.wait)
    assert [type(error) for error in seen] == [Abandoned]


@pytest.mark.usefixtures("switching")
async def test_a_thread_started_by_a_cancelled_call_is_not_mistaken_for_it() -> None:
    go, ended = threading.Event(), threading.Event()
    told = list[BaseException]()

    def asks() -> None:
        go.wait()
        try:
            start_on_run_loop("asyncio.sleep()", lambda: asyncio.sleep(0))
        except BaseException as error:  # noqa: BLE001  whatever it is told
            told.append(error)

    def busy() -> None:
        copied = contextvars.copy_context().run
        other = threading.Thread(target=copied, args=(asks,))
        other.start()
        begun.set()
        try:
            go.wait()
            other.join()
            while True:
                pass
        finally:
            ended.set()

    begun = threading.Event()
    task = asyncio.ensure_future(in_thread(busy))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 30)
    assert [type(error) for error in told] == [Abandoned]


def test_a_call_after_the_end_of_the_loop_is_refused() -> None:
    """It once waited for ever, and the interpreter waited for it at its end."""
    told, over = list[BaseException](), threading.Event()

    def asks() -> None:
        over.wait()
        try:
            start_on_run_loop("asyncio.sleep()", lambda: asyncio.sleep(0))
        except BaseException as error:  # noqa: BLE001  whatever it is told
            told.append(error)

    def starts() -> threading.Thread:
        other = threading.Thread(target=contextvars.copy_context().run, args=(asks,))
        other.start()
        return other

    other = asyncio.run(in_thread(starts))
    over.set()
    other.join()
    assert [type(error) for error in told] == [NotInARun]


def test_ctrl_c_waits_for_no_synchronous_step(tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(CTRL_C)
    flag = tmp_path / "flag"
    words = [
        sys.executable,
        "-m",
        "ramify.cli.main",
        "--home",
        str(tmp_path / "home"),
        "run",
        "sleepy.py:sleepy",
        str(flag),
    ]
    child = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not flag.exists():
            assert child.poll() is None, child.communicate()
            signal.sigtimedwait([], 0.02)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    assert f"ramify --home {tmp_path / 'home'} resume" in said
