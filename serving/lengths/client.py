"""The gateway's side of the analyzer. Scheduling never waits for it for long, and never fails with it.

    async with AnalyzerSupervisor(folder) as process:
        analyzer = AnalyzerClient(lambda: process.socket)

    forecast, = await analyzer.predict([Ask(model=…, prompt=…, limit=…, call=id)])    # before the first token
    forecast, = await analyzer.predict([replace(ask, generated=50, text=so_far)])     # every 50 tokens
    analyzer.observe(Ended(ask, length=…, bound=forecast.sketch))                     # at the end

While the analyzer is away, `predict` returns what it last said: about this call, else about a call of the same
application, model and stage, else the limit. `forecast.fresh` is then False. Reports for learning are kept
meanwhile, up to a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

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

    def __init__(self, socket: Callable[[], Path], *, patience_s: float = 0.1, retry_s: float = 0.2) -> None:
        """`socket`: where the process answers now. `patience_s`: how long a call may wait for its forecast.
        `retry_s`: seconds between attempts to connect."""
        self._at = socket
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
    def _socket(self) -> Path:
        return self._at()

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
                reader, writer = await frames.connect(self._socket)
            except (OSError, BadFrame) as error:
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
