"""The analyzer's process: `python -m ramify.serving.lengths.process SETTINGS`, started by `supervisor`.

One thread answers over a Unix socket; asks that arrive together are predicted together. Another thread refits and
writes checkpoints. The process lives until its stdin ends, which a killed parent's does too, and saves once more
before it goes.

Requests are frames with an `op`; those with an `id` are answered by a frame with the same one:
    predict {asks} -> {forecasts}     observe {ended}      match {app, compound, stages} -> {estimates}
    record {app, compound, stages}    stats -> {stats}     hello -> {protocol}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ramify.serving.errors import BadFrame, CheckpointCorrupt
from ramify.serving.lengths import checkpoint, frames
from ramify.serving.lengths.frames import Json
from ramify.serving.lengths.service import Service, stats_to_json
from ramify.serving.lengths.types import Ask
from ramify.serving.parent_process import end_with_parent

_SHARE = 0.1  # of one core: the most that background learning takes in the long run
log = logging.getLogger("ramify.analyzer")


class Server:
    """The connections, and the background work."""

    def __init__(self, service: Service, saved: Path, *, save_every_s: float) -> None:
        self._service = service
        self._saved = saved
        self._save_every_s = save_every_s
        self._asked: list[tuple[Sequence[Ask], object, asyncio.StreamWriter]] = []
        self._behind = ThreadPoolExecutor(1, thread_name_prefix="analyzer", initializer=_in_no_hurry)
        self._changed = False

    async def serve(self, socket: Path, until: asyncio.Event) -> None:
        """Answer at `socket` until the event is set; then save."""
        socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._connected, socket)
        socket.chmod(0o600)
        background = asyncio.create_task(self._work())
        try:
            ends = asyncio.create_task(until.wait())
            await asyncio.wait({ends, background}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.close()
            background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await background  # an exception in it ends the process, and the supervisor starts another
            self._behind.shutdown(wait=True)
            if self._changed:
                checkpoint.write(self._saved, checkpoint.snapshot(self._service))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await frames.read(reader)) is not None:
                reply = self._answer(message, writer)
                if reply is not None and "id" in message:
                    writer.write(frames.pack({**reply, "id": message["id"]}))
                await writer.drain()
        except BadFrame as error:
            log.warning("a connection is closed: %s", error)
            with contextlib.suppress(ConnectionError):
                writer.write(frames.pack({"error": str(error)}))
                await writer.drain()
        except ConnectionError:
            pass  # the client has gone, and nobody wants the answer
        finally:
            writer.close()

    def _answer(self, message: Json, writer: asyncio.StreamWriter) -> Json | None:
        """The reply; None if it comes later. Raises BadFrame."""
        op = frames.text(message, "op")
        if op == "predict":
            asks = tuple(frames.ask_from_json(ask) for ask in frames.items(message.get("asks")))
            if not self._asked:
                asyncio.get_running_loop().call_soon(self._predict_all)
            self._asked.append((asks, message.get("id"), writer))
            return None
        if op == "hello":
            return {"protocol": frames.PROTOCOL}
        if op == "match":
            return self._service.match(message)
        if op == "stats":
            return {"stats": stats_to_json(self._service.stats())}
        if op == "observe":
            self._service.observe(message)
        elif op == "record":
            self._service.record(message)
        else:
            raise BadFrame(f"no such op: {op[:40]!r}")
        self._changed = True
        return {}

    def _predict_all(self) -> None:
        """Predict in one batch whatever was asked in this turn of the loop, by any connection."""
        asked, self._asked = self._asked, []
        found = self._service.predict([ask for asks, *_ in asked for ask in asks])
        at = 0
        for asks, number, writer in asked:
            own = found[at : at + len(asks)]
            at += len(asks)
            if not writer.is_closing():
                reply = {"forecasts": [frames.forecast_to_json(forecast) for forecast in own], "id": number}
                writer.write(frames.pack(reply))

    async def _work(self) -> None:
        """Refit when enough has come, and save what changed. One at a time: neither is in a hurry."""
        loop = asyncio.get_running_loop()
        next_save = loop.time() + self._save_every_s
        rests_until = loop.time()
        while True:
            await asyncio.sleep(min(1.0, self._save_every_s))
            if self._service.learner.due() and loop.time() >= rests_until:
                began = loop.time()
                spent = await loop.run_in_executor(self._behind, self._refit)
                rests_until = began + spent / _SHARE
                self._changed = True
                models = self._service.learner.models
                log.info("refitted to version %d in %.1f s", models.version, loop.time() - began)
                next_save = loop.time()
            if self._changed and loop.time() >= next_save:
                self._changed = False
                arrays = checkpoint.snapshot(self._service)
                try:
                    await loop.run_in_executor(self._behind, checkpoint.write, self._saved, arrays)
                    self._service.saved_at = self._saved.stat().st_mtime
                except OSError as error:
                    self._changed = True
                    log.error("the checkpoint could not be written to %s: %s", self._saved, error)
                next_save = loop.time() + self._save_every_s

    def _refit(self) -> float:
        """Learn, in the background thread. Returns the seconds of CPU that it took."""
        began = time.thread_time()
        self._service.learner.refit()
        return time.thread_time() - began


def _in_no_hurry() -> None:
    """Lower this thread's priority below the threads that answer. On Linux, each thread has its own priority."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def load(saved: Path, earlier: Path | None = None) -> Service:
    """The saved state, or `earlier` if none was saved; a new one if there is none or it is damaged. A damaged file is
    kept aside."""
    if earlier is not None and not saved.exists():
        saved = earlier
    try:
        return checkpoint.read(saved) or Service()
    except CheckpointCorrupt as error:
        aside = saved.with_name(saved.name + ".corrupt")
        saved.replace(aside)
        log.error("starting without what was learnt: %s (kept as %s)", error, aside)
        return Service()


async def _main(settings: Json) -> None:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()

    def from_parent() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            until.set()

    loop.add_reader(0, from_parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, until.set)
    saved = Path(frames.text(settings, "saved"))
    earlier = frames.text(settings, "earlier", "")
    server = Server(
        load(saved, Path(earlier) if earlier else None), saved, save_every_s=frames.real(settings, "save_every_s")
    )
    await server.serve(Path(frames.text(settings, "socket")), until)


def main() -> None:
    settings = json.loads(sys.argv[1])
    end_with_parent(settings["parent"], lambda: os.kill(os.getpid(), signal.SIGTERM))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_main(settings))


if __name__ == "__main__":
    main()
