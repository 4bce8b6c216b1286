"""The gateway's side of the analyzer: the supervisor of its process, and its client. Scheduling never waits for it
for long, and never fails with it.

    async with AnalyzerSupervisor(folder) as process:
        analyzer = AnalyzerClient(process.socket)

    forecast, = await analyzer.predict([Ask(model=…, prompt=…, limit=…, call=id)])    # before the first token
    forecast, = await analyzer.predict([replace(ask, generated=50, text=so_far)])     # every 50 tokens
    analyzer.observe(Ended(ask, length=…, bound=forecast.sketch))                     # at the end

While the analyzer is away, `predict` returns what it last said: about this call, else about a call of the same
application, model and stage, else the limit. `forecast.fresh` is then False. Reports for learning are kept
meanwhile, up to a bound. The supervisor restarts a process that dies. The process ends with its stdin, which is
this process's end of a pipe, so it never outlives its parent for long.

A folder has one process at a time, for all gateways that use it: the one that holds the lock of the folder runs it,
and the others connect to it. When it ends with its gateway, one of the others starts the next, from its checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ramify import paths
from ramify.serving.errors import AnalyzerDown, BadFrame
from ramify.serving.lengths import frames
from ramify.serving.lengths.frames import Json
from ramify.serving.lengths.pattern_graph import Node
from ramify.serving.lengths.service import Stats, estimates_from_json, stages_to_json, stats_from_json
from ramify.serving.lengths.types import Ask, Basis, Ended, Estimates, Forecast
from ramify.serving.protocol.length_sketch import LengthSketch

_REMEMBERED = 8_192  # last sketches
_ASKED_S = 5.0  # timeout of `expected`, for which no call waits
_UNSENT = 1_024  # reports kept while the analyzer is away; the oldest are dropped first


class AnalyzerClient:
    """One connection, opened when needed. Use it from one event loop."""

    def __init__(self, socket: Path, *, patience_s: float = 0.1, retry_s: float = 0.2) -> None:
        """`patience_s`: how long a call may wait for its forecast. `retry_s`: seconds between attempts to connect."""
        self._socket = socket
        self._patience_s = patience_s
        self._retry_s = retry_s
        self._retry_at = 0.0
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._last_id = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._unsent: deque[bytes] = deque(maxlen=_UNSENT)
        self._last: OrderedDict[str, LengthSketch] = OrderedDict()
        self._connecting = asyncio.Lock()

    @property
    def connected(self) -> bool:
        return self._writer is not None

    async def predict(self, asks: Sequence[Ask]) -> list[Forecast]:
        """One forecast for each ask. Never raises because the analyzer is away."""
        if not asks:
            return []
        try:
            reply = await self._request({"op": "predict", "asks": [frames.ask_to_json(ask) for ask in asks]})
            found = [frames.forecast_from_json(forecast) for forecast in frames.items(reply.get("forecasts"))]
            if len(found) != len(asks):
                raise BadFrame(f"{len(asks)} forecasts were asked for, {len(found)} came")
        except (AnalyzerDown, BadFrame):
            return [self._last_of(ask) for ask in asks]
        for ask, forecast in zip(asks, found, strict=True):
            self._remember(ask, forecast)
        return found

    async def match(self, compound: str, app: str, stages: Sequence[Sequence[Node]]) -> Estimates | None:
        """The stages still to come of a compound request whose `stages` are done; None without history, or while the
        analyzer is away."""
        try:
            return await self._match(compound, app, stages, self._patience_s)
        except (AnalyzerDown, BadFrame):
            return None

    async def expected(self, app: str) -> Estimates | None:
        """The stages of an application's compound requests; None without history. Raises AnalyzerDown or BadFrame,
        because a caller that asks only for this wants to know that nobody answered."""
        return await self._match("", app, (), _ASKED_S)

    def observe(self, ended: Ended) -> None:
        """Report a call that has ended, for learning. Returns at once."""
        self._last.pop(ended.ask.call, None)
        self._report({"op": "observe", "ended": frames.ended_to_json(ended)})

    def record(self, compound: str, app: str, stages: Sequence[Sequence[Node]]) -> None:
        """Report a compound request that has ended, for learning. Returns at once."""
        self._report({"op": "record", "app": app, "compound": compound, "stages": stages_to_json(stages)})

    async def stats(self) -> Stats:
        """The analyzer's statistics. Raises AnalyzerDown or BadFrame."""
        return stats_from_json((await self._request({"op": "stats"})).get("stats"))

    async def aclose(self) -> None:
        """Close the connection. Reports that were not sent are lost."""
        reading, self._reading = self._reading, None
        self._hang_up(AnalyzerDown("this client was closed"))
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    def _last_of(self, ask: Ask) -> Forecast:
        sketch = self._last.get(ask.call) if ask.call else None
        sketch = sketch or self._last.get(_kind_of(ask))
        if sketch is None:
            return Forecast(LengthSketch.cold(ask.limit).condition(ask.generated), Basis.COLD, fresh=False)
        return Forecast(sketch.condition(ask.generated).capped(ask.limit), Basis.LAST, fresh=False)

    def _remember(self, ask: Ask, forecast: Forecast) -> None:
        for key in filter(None, (ask.call, "" if ask.generated else _kind_of(ask))):
            self._last.pop(key, None)
            self._last[key] = forecast.sketch
        while len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)

    def _report(self, message: Json) -> None:
        self._unsent.append(frames.pack(message))
        if self._writer is not None:
            self._send_reports(self._writer)

    def _send_reports(self, writer: asyncio.StreamWriter) -> None:
        while self._unsent and not writer.is_closing():
            writer.write(self._unsent.popleft())

    async def _match(
        self, compound: str, app: str, stages: Sequence[Sequence[Node]], patience_s: float
    ) -> Estimates | None:
        message = {"op": "match", "app": app, "compound": compound, "stages": stages_to_json(stages)}
        found = (await self._request(message, patience_s)).get("estimates")
        return None if found is None else estimates_from_json(found)

    async def _request(self, message: Json, patience_s: float | None = None) -> Json:
        """Send a request and wait for its reply. Raises AnalyzerDown."""
        patience_s = self._patience_s if patience_s is None else patience_s
        try:
            async with asyncio.timeout(patience_s):
                writer = await self._connection()
                self._last_id += 1
                number = self._last_id
                future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
                self._waiting[number] = future
                try:
                    writer.write(frames.pack({**message, "id": number}))
                    return await future
                finally:
                    self._waiting.pop(number, None)
        except TimeoutError as error:
            raise AnalyzerDown(f"no answer from {self._socket} within {patience_s} s") from error

    async def _connection(self) -> asyncio.StreamWriter:
        """The open connection, or a new one; tries at most every `retry_s` seconds. Raises AnalyzerDown."""
        async with self._connecting:
            if self._writer is not None:
                return self._writer
            now = asyncio.get_running_loop().time()
            if now < self._retry_at:
                raise AnalyzerDown(f"{self._socket} did not answer a moment ago")
            self._retry_at = now + self._retry_s
            try:
                reader, writer = await asyncio.open_unix_connection(self._socket)
            except OSError as error:
                raise AnalyzerDown(f"the analyzer cannot be reached at {self._socket}: {error}") from error
            self._writer = writer
            self._reading = asyncio.create_task(self._read(reader, writer))
            self._send_reports(writer)
            return writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reason = AnalyzerDown(f"{self._socket} closed the connection")
        try:
            while (message := await frames.read(reader)) is not None:
                if "error" in message:
                    raise BadFrame(frames.text(message, "error"))
                future = self._waiting.get(frames.count(message, "id"))
                if future is not None and not future.done():
                    future.set_result(message)
        except (BadFrame, ConnectionError) as error:
            reason = AnalyzerDown(f"{self._socket}: {error}")
        finally:
            if self._writer is writer:
                self._hang_up(reason)

    def _hang_up(self, reason: AnalyzerDown) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(reason)


def _kind_of(ask: Ask) -> str:
    """The key of calls with similar lengths: application, model and stage."""
    return f"\x1f{ask.app}\x1f{ask.model}\x1f{ask.stage}"


_LONGEST_PATH = 107  # bytes: the limit of a Unix socket's address
_START_S = 20.0
_POLL_S = 0.05
_STOP_S = 10.0
_BACKOFF_S = (0.0, 0.1, 0.5, 2.0, 5.0)  # before each restart of a process that keeps dying
_STEADY_S = 30.0  # a process that ran for so long does not count as "keeps dying"
log = logging.getLogger("ramify.analyzer")


class AnalyzerSupervisor:
    """The analyzer of a folder: a child process, or that of another gateway until it ends. The folder holds the
    socket, the checkpoint and the log."""

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
        self.socket = folder / "analyzer.sock"
        self.checkpoint = folder / "analyzer.state"
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
    def pid(self) -> int | None:
        """The id of the present process; None if it does not run, or is another gateway's."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def __aenter__(self) -> AnalyzerSupervisor:
        if len(os.fsencode(self.socket)) > _LONGEST_PATH:
            raise AnalyzerDown(f"{self.socket} is too long for a Unix socket: choose a folder with a shorter path")
        paths.make_private(self.folder)
        try:
            self._lock = os.open(self.folder / "analyzer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise AnalyzerDown(
                f"{self.folder} cannot be used: {error.strerror} (analyzer.lock). Make it yours, or choose another "
                "--home, or --no-analyzer"
            ) from error
        try:
            await self._start_or_join()
        except BaseException:
            os.close(self._lock)
            raise
        self._watching = asyncio.create_task(self._watch())
        return self

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
        os.close(self._lock)

    async def _start_or_join(self) -> None:
        """Start the process, or connect to that of the gateway that holds the lock. A process inherits the lock: one
        whose gateway was killed may still be writing its last checkpoint. Raises AnalyzerDown."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._join_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return await self._start()
            except BlockingIOError:
                pass
            with contextlib.suppress(OSError):
                self._joined = await asyncio.open_unix_connection(self.socket)
                return log.info("analyzer_shared")
            if loop.time() > give_up:
                raise AnalyzerDown(
                    f"another gateway's analyzer uses {self.folder} and does not answer: end that gateway, or give "
                    "this one another --home, or --no-analyzer"
                )
            await asyncio.sleep(_POLL_S)

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
                "-m",
                "ramify.serving.lengths.process",
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
