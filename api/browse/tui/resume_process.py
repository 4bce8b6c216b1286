"""A resume in a process of its own, as if the user had typed it.

The user's code prints, changes signal handlers, imports anything and may hang. None of this may affect the terminal
that the browser draws on. The browser reads the run from the database, as it reads any other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ramify.inspect.home import Home

_KILLED_AFTER_S = 10.0


def command(home: Home, run_id: str, answers: Sequence[str]) -> list[str]:
    """`-P`: a module of the current folder does not stand in for one of Python's or ours, as with the command."""
    words = [sys.executable, "-P", "-m", "ramify.cli.main", "--home", str(home.folder)]
    if home.database_given is not None:
        words += ["--database", home.database_given]
    return [*words, "resume", run_id, *(f"--answer={answer}" for answer in answers)]


@dataclass
class ResumeProcess:
    """One resume and its output. `heard` is called after each line, and at the end."""

    run_id: str
    heard: Callable[[], None]
    said: list[str] = field(default_factory=list)
    status: int | None = None  # its exit status; None while it runs
    _process: asyncio.subprocess.Process | None = None

    async def work(self, words: Sequence[str]) -> None:
        """Run to the end. If cancelled, the process is stopped as by Ctrl-C, and the run can be resumed again."""
        self._process = process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # the terminal's Ctrl-C is for the browser
        )
        assert process.stdout is not None
        try:
            while chunk := await process.stdout.read(1 << 16):
                self._hear(chunk.decode(errors="replace"))
            self.status = await process.wait()
        finally:
            if process.returncode is None:
                await asyncio.shield(self._end(process))
        self.heard()

    def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), _KILLED_AFTER_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _hear(self, text: str) -> None:
        first, *rest = text.split("\n")
        self.said[-1:] = [(self.said[-1] if self.said else "") + first]
        self.said += rest
        self.heard()
