"""Starts the analyzer's process, watches it, and restarts it when it dies.

    async with AnalyzerSupervisor(folder) as analyzer:
        client = AnalyzerClient(analyzer.socket)

The process ends with its stdin, which is this process's end of a pipe, so it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from ramify import paths
from ramify.serving.errors import AnalyzerDown

_LONGEST_PATH = 107  # bytes: the limit of a Unix socket's address
_START_S = 20.0
_STOP_S = 10.0
_BACKOFF_S = (0.0, 0.1, 0.5, 2.0, 5.0)  # before each restart of a process that keeps dying
_STEADY_S = 30.0  # a process that ran for so long does not count as "keeps dying"
log = logging.getLogger("ramify.analyzer")


class AnalyzerSupervisor:
    """The analyzer as a child process. Its folder holds the socket, the checkpoint and its log."""

    def __init__(
        self,
        folder: Path,
        *,
        save_every_s: float = 30.0,
        lock_s: float = _START_S,
        restarted: Callable[[], None] = lambda: None,
    ) -> None:
        """`restarted` is called when it answers again after a death. `lock_s`: seconds to wait for the analyzer of an
        earlier gateway to end."""
        self.folder = folder
        self.socket = folder / "analyzer.sock"
        self.checkpoint = folder / "analyzer.state"
        self.restarts = 0
        self._save_every_s = save_every_s
        self._lock_s = lock_s
        self._locked = -1  # while entered: the descriptor that holds the lock of the folder
        self._restarted = restarted
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the present process; None if it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def __aenter__(self) -> AnalyzerSupervisor:
        if len(os.fsencode(self.socket)) > _LONGEST_PATH:
            raise AnalyzerDown(f"{self.socket} is too long for a Unix socket: choose a folder with a shorter path")
        paths.make_private(self.folder)
        self._locked = await self._lock()
        try:
            await self._start()
        except BaseException:
            os.close(self._locked)
            raise
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        self.socket.unlink(missing_ok=True)
        os.close(self._locked)

    async def _lock(self) -> int:
        """Lock the folder. Returns the descriptor that holds the lock. The process inherits it, because a process
        whose gateway was killed may still be writing its last checkpoint. Raises AnalyzerDown."""
        descriptor = os.open(self.folder / "analyzer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._lock_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if loop.time() > give_up:
                    os.close(descriptor)
                    raise AnalyzerDown(
                        f"another gateway's analyzer uses {self.folder}: give one of the two gateways "
                        "another --port or --home, or --no-analyzer"
                    ) from None
            await asyncio.sleep(0.05)

    async def _start(self) -> None:
        """Start the process; returns when it answers. Raises AnalyzerDown."""
        self.socket.unlink(missing_ok=True)
        settings = {
            "parent": os.getpid(),
            "socket": str(self.socket),
            "saved": str(self.checkpoint),
            "save_every_s": self._save_every_s,
        }
        # One thread for each numeric library: the serving process needs the other cores.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with (self.folder / "analyzer.log").open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ramify.serving.lengths.process",
                json.dumps(settings),
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**os.environ, **threads},
                pass_fds=(self._locked,),
                start_new_session=True,  # Ctrl-C goes to the gateway, which then stops it
            )
        await self._answers(self._process)

    async def _answers(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _START_S
        while loop.time() < give_up and process.returncode is None:
            try:
                _, writer = await asyncio.open_unix_connection(self.socket)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                return
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise AnalyzerDown(
            f"the analyzer did not start (exit {process.returncode}): see {self.folder / 'analyzer.log'}"
        )

    async def _watch(self) -> None:
        """Restart the process whenever it ends."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while self._process is not None:
            began = loop.time()
            status = await self._process.wait()
            deaths = 0 if loop.time() - began > _STEADY_S else deaths + 1
            log.error("analyzer_died", extra={"fields": {"status": status}})
            await asyncio.sleep(_BACKOFF_S[min(deaths, len(_BACKOFF_S) - 1)])
            try:
                await self._start()
            except AnalyzerDown as error:
                log.error("analyzer_failed", extra={"fields": {"problem": str(error)}})
                continue
            self.restarts += 1
            self._restarted()
            log.info("analyzer_restarted", extra={"fields": {"restarts": self.restarts}})
