"""The analyzer's process, seen from a gateway: it is started, shared and restarted here.

The process ends with its stdin, which is this process's end of a pipe, so it never outlives its parent for long.

A folder has one process at a time, for all gateways that use it: the one that holds the lock of the folder runs it,
and the others connect to it. When it ends with its gateway, one of the others starts the next, from its checkpoint.
A gateway of another Ramify whose protocol differs, or on another machine with the same home, cannot connect: it
learns by itself, in a folder below.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ramify import paths
from ramify.serving.errors import AnalyzerApart, AnalyzerDown, BadFrame
from ramify.serving.lengths import frames

_LONGEST_PATH = 107  # bytes: the limit of a Unix socket's address
_START_S = 20.0
_POLL_S = 0.05
_STOP_S = 10.0
_BACKOFF_S = (0.0, 0.1, 0.5, 2.0, 5.0)  # before each restart of a process that keeps dying
_STEADY_S = 30.0  # a process that ran for so long does not count as "keeps dying"
log = logging.getLogger("ramify.analyzer")


class AnalyzerSupervisor:
    """The analyzer of a folder: a child process, or that of another gateway until it ends. The folder holds the
    socket, the checkpoint and the log.

    If another gateway's cannot be shared, the folder becomes one below it, and so do the paths in it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        earlier: Path | None = None,
        save_every_s: float = 30.0,
        join_s: float = _START_S,
        restarted: Callable[[], None] = lambda: None,
    ) -> None:
        """`restarted` is called when this gateway's process answers again after a death, of its own or of another
        gateway's. `join_s`: seconds to wait for a process of another gateway to answer or to end. `earlier`: the
        checkpoint to begin with while the folder has none."""
        self.folder = folder
        self.restarts = 0
        self._earlier = earlier
        self._save_every_s = save_every_s
        self._join_s = join_s
        self._lock = -1  # while entered: the descriptor that locks the folder, if this gateway runs the process
        self._restarted = restarted
        self._process: asyncio.subprocess.Process | None = None
        self._joined: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None  # to another gateway's process
        self._watching: asyncio.Task[None] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "analyzer.sock"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "analyzer.state"

    @property
    def pid(self) -> int | None:
        """The id of the present process; None if it does not run, or is another gateway's."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def __aenter__(self) -> AnalyzerSupervisor:
        self._open()
        try:
            await self._start_or_join()
        except BaseException:
            os.close(self._lock)
            raise
        self._watching = asyncio.create_task(self._watch())
        return self

    def _open(self) -> None:
        """Make the folder, and open its lock. Raises AnalyzerDown."""
        if len(os.fsencode(self.socket)) > _LONGEST_PATH:
            raise AnalyzerDown(f"{self.socket} is too long for a Unix socket: choose a folder with a shorter path")
        try:
            paths.make_private(self.folder)
            self._lock = os.open(self.folder / "analyzer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise AnalyzerDown(
                f"{self.folder} cannot be used: {error.strerror} (analyzer.lock). Make it yours, or choose another "
                "--home, or --no-analyzer"
            ) from error

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        self._leave()
        if (process := self._process) is not None:
            if process.returncode is None and process.stdin is not None:
                process.stdin.close()
                try:
                    await asyncio.wait_for(process.wait(), _STOP_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()
            self.socket.unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)

    async def _start_or_join(self) -> None:
        """Start the process, or connect to that of the gateway that holds the lock, or start one apart from it.
        Raises AnalyzerDown."""
        try:
            return await self._start_or_share()
        except AnalyzerApart as error:
            log.warning("analyzer_apart", extra={"fields": {"problem": str(error)}})
            below = self.folder / error.folder
        if below.name == self.folder.name:
            raise AnalyzerDown(f"{self.folder} is used from elsewhere, too: give this gateway another --home")
        os.close(self._lock)
        self._lock, self.folder, self._earlier = -1, below, None
        self._open()
        await self._start_or_join()

    async def _start_or_share(self) -> None:
        """Start the process, or connect to that of the gateway that holds the lock. A process inherits the lock: one
        whose gateway was killed may still be writing its last checkpoint. Raises AnalyzerApart and AnalyzerDown."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._join_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, _this_machine().encode(), 0)
                return await self._start()
            self._check_machine()
            with contextlib.suppress(OSError):
                async with asyncio.timeout_at(give_up):
                    self._joined = await self._shared()
                return log.info("analyzer_shared")
            if loop.time() > give_up:
                raise AnalyzerDown(
                    f"another gateway's analyzer uses {self.folder} and does not answer: end that gateway, or give "
                    "this one another --home, or --no-analyzer"
                )
            await asyncio.sleep(_POLL_S)

    async def _shared(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to another gateway's process. Raises OSError, and AnalyzerApart if its version differs."""
        try:
            return await frames.connect(self.socket)
        except BadFrame as error:
            raise AnalyzerApart(
                f"another gateway's analyzer uses {self.folder}: {error}. This gateway learns by itself, in a folder "
                "below it",
                f"protocol-{frames.PROTOCOL}",
            ) from error

    def _check_machine(self) -> None:
        """Check that who holds the lock can be reached: a Unix socket in a network file system leads nowhere from
        another machine. Raises AnalyzerApart."""
        said = os.pread(self._lock, 256, 0).decode(errors="replace")
        if said and said != _this_machine():
            name = hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
            raise AnalyzerApart(
                f"a gateway on another machine uses {self.folder}, and its analyzer cannot be reached from here. "
                "This gateway learns by itself, in a folder below it",
                f"machine-{name}",
            )

    async def _start(self) -> None:
        """Start the process; returns when it answers. Raises AnalyzerDown."""
        self.socket.unlink(missing_ok=True)
        settings = {
            "parent": os.getpid(),
            "socket": str(self.socket),
            "saved": str(self.checkpoint),
            "earlier": str(self._earlier or ""),
            "save_every_s": self._save_every_s,
        }
        # One thread for each numeric library: the serving process needs the other cores.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with (self.folder / "analyzer.log").open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "ramify.serving.lengths.process"),  # nothing from the current folder
                json.dumps(settings),
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**os.environ, **threads},
                pass_fds=(self._lock,),
                start_new_session=True,  # Ctrl-C goes to the gateway, which then stops it
            )
        await self._answers(self._process)

    async def _answers(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _START_S
        while loop.time() < give_up and process.returncode is None:
            try:
                _, writer = await frames.connect(self.socket)
            except (OSError, BadFrame):
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
        """Start or join another process whenever the present one ends."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            began = loop.time()
            await self._end()
            deaths = 0 if loop.time() - began > _STEADY_S else deaths + 1
            await asyncio.sleep(_BACKOFF_S[min(deaths, len(_BACKOFF_S) - 1)])
            try:
                await self._start_or_join()
            except AnalyzerDown as error:
                log.error("analyzer_failed", extra={"fields": {"problem": str(error)}})
                continue
            if self._process is not None:
                self.restarts += 1
                self._restarted()
                log.info("analyzer_restarted", extra={"fields": {"restarts": self.restarts}})

    async def _end(self) -> None:
        """Wait until the process has ended. Another gateway's has when it closes the connection."""
        if self._process is not None:
            log.error("analyzer_died", extra={"fields": {"status": await self._process.wait()}})
        elif self._joined is not None:
            with contextlib.suppress(ConnectionError):
                await self._joined[0].read()
            self._leave()

    def _leave(self) -> None:
        if self._joined is not None:
            self._joined[1].close()
            self._joined = None


def _this_machine() -> str:
    """A name that no other running machine has: processes with the same one reach each other's Unix sockets."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return os.uname().nodename
