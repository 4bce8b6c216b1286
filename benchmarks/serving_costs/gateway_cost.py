"""Measure the gateway's own cost: CPU time per streamed token with many slow streams open, and how many it can carry.

Three processes: a fake engine that streams tokens at a steady pace, the gateway as `ramify serve` runs it, and this
one, which reads. Every token arrives separately, at its own time, so the measurement itself batches nothing. Alone:
`python -m benchmarks.serving_costs.gateway_cost [--quick]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.rows import Row, row

STREAMS = 500
TOKENS_PER_S = 4.0
TARGET_MS = 0.2
MANY, MANY_TOKENS = 2000, 8
_WINDOWS = 20
_WINDOW_S = 1.0
_STREAMING_S = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_ASKED = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
_END = {"id": "chatcmpl-6d2c1f0e9b8a", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
_LAST = b"data: " + json.dumps(_END).encode() + b"\n\ndata: [DONE]\n\n"

_GATEWAY = """
import asyncio, os, sys
from pathlib import Path
from ramify.serving.engine.contract import EngineSpec
from ramify.serving.gateway.server import serve
from ramify.serving.gateway.settings import GatewaySettings
engine = EngineSpec.parse(sys.argv[1])
settings = GatewaySettings(home=Path("."), engines=(engine,), slots=int(sys.argv[2]))
asyncio.run(serve(settings, log=open(os.devnull, "w"), ready=lambda url: print(url, flush=True)))
"""


class Broken(Exception):
    """What was to be measured does not work."""


def _event(number: int) -> bytes:
    """Return a chunk as vLLM writes it, framed for HTTP."""
    choice = {"index": 0, "delta": {"content": f" word{number}"}, "logprobs": None, "finish_reason": None}
    head = {"id": "chatcmpl-6d2c1f0e9b8a", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    data = b"data: " + json.dumps({**head, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Engine(asyncio.Protocol):
    """One connection of the fake engine: it answers any post with `max_tokens` tokens, or until the other side
    disconnects."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._seen = b""
        self._sent = 0

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, _, body = self._seen.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            answer = b'{"object":"list","data":[{"id":"fake","object":"model"}]}'
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            self._transport.write(b"content-length: %d\r\n\r\n" % len(answer) + answer)
            self._seen = b""
        elif not self._sent and body.endswith(b"}"):
            self._most = json.loads(body).get("max_tokens", sys.maxsize)
            self._transport.write(_HEAD)
            asyncio.get_running_loop().call_later(random.random() / TOKENS_PER_S, self._token)

    def _token(self) -> None:
        if self._sent == self._most:
            self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(_LAST), _LAST))
            self._seen, self._sent = b"", 0
        elif not self._transport.is_closing():
            self._sent += 1
            self._transport.write(_event(self._sent))
            asyncio.get_running_loop().call_later(1.0 / TOKENS_PER_S, self._token)


async def _engine() -> None:
    _many_descriptors()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Engine, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)


class _Reader(asyncio.Protocol):
    """One client: sends one request and counts the events of its answer."""

    events = 0  # of all readers
    refused = ""  # what one of them got instead of a stream

    def __init__(self, most: int | None = None) -> None:
        self._asked = json.dumps(_ASKED if most is None else {**_ASKED, "max_tokens": most}).encode()
        self._keeps = most is not None
        self._begun = False
        self.seen = b""
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(self._asked)}\r\n"
        transport.write(f"{head}connection: close\r\ncontent-type: application/json\r\n\r\n".encode() + self._asked)

    def data_received(self, data: bytes) -> None:
        _Reader.events += data.count(b"data: ")
        if not self._begun and not data.startswith(b"HTTP/1.1 200 "):
            _Reader.refused = data.decode(errors="replace")
        self._begun = True
        if self._keeps:
            self.seen += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


@asynccontextmanager
async def _child(*command: str, cwd: str) -> AsyncIterator[tuple[int, str]]:
    """Run a child process: yields its id and its first line of output. What it says on stderr goes to ours.

    Raises Broken if it ends before it writes a line.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert process.stdout is not None
    try:
        if not (line := (await process.stdout.readline()).decode().strip()):
            raise Broken(f"a child of the benchmark ended with status {await process.wait()}: see its stderr above")
        yield process.pid, line
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _cpu_s(pid: int) -> float:
    """Return the user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def measure(streams: int = STREAMS, windows: int = _WINDOWS, window_s: float = _WINDOW_S) -> list[float]:
    """Return the milliseconds of gateway CPU per token, one figure per window."""
    _many_descriptors()
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        async with (
            _child("-m", "benchmarks.serving_costs.gateway_cost", "engine", cwd=folder) as (_, engine),
            _child("-c", _GATEWAY, engine, str(streams), cwd=folder) as (gateway, url),
        ):
            port = int(url.split(":")[2].split("/")[0])
            transports = [(await loop.create_connection(_Reader, "127.0.0.1", port))[0] for _ in range(streams)]
            await _all_stream(streams)
            figures = []
            for _ in range(windows):
                cpu, events = _cpu_s(gateway), _Reader.events
                await asyncio.sleep(window_s)
                figures.append(1000.0 * (_cpu_s(gateway) - cpu) / max(1, _Reader.events - events))
            for transport in transports:
                transport.abort()
    return figures


async def _all_stream(streams: int) -> None:
    """Wait until all readers receive tokens at the engine's pace. Raises Broken."""
    seen, give_up = -1.0, time.monotonic() + _STREAMING_S
    while seen < 0.9 * streams * TOKENS_PER_S:
        if _Reader.refused:
            raise Broken(f"the gateway refused a stream: {_Reader.refused}")
        if time.monotonic() > give_up:
            raise Broken(f"{streams} streams bring {seen:.0f} tokens a second, not {streams * TOKENS_PER_S:.0f}")
        before, begun = _Reader.events, time.perf_counter()
        await asyncio.sleep(1.0)
        seen = (_Reader.events - before) / (time.perf_counter() - begun)


async def many(streams: int = MANY, tokens: int = MANY_TOKENS) -> tuple[int, float, float]:
    """Request `streams` streams at once. Returns how many complete, the seconds until the last, and the gateway's CPU
    seconds."""
    _many_descriptors()
    loop, begun = asyncio.get_running_loop(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        async with (
            _child("-m", "benchmarks.serving_costs.gateway_cost", "engine", cwd=folder) as (_, engine),
            _child("-c", _GATEWAY, engine, str(streams), cwd=folder) as (gateway, url),
        ):
            port, begun = int(url.split(":")[2].split("/")[0]), time.perf_counter()

            async def one() -> bool:
                _, reader = await loop.create_connection(lambda: _Reader(tokens), "127.0.0.1", port)
                await reader.over
                return reader.seen.count(b'"content":" word') == tokens and b"data: [DONE]" in reader.seen

            async with asyncio.timeout(300):
                came = await asyncio.gather(*(one() for _ in range(streams)))
            if _Reader.refused:
                print(f"a stream got this instead of an answer: {_Reader.refused}", file=sys.stderr)
            return sum(came), time.perf_counter() - begun, _cpu_s(gateway)


def _many_descriptors() -> None:
    """Allow this process as many connections as the system does: one for each stream."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def rows(*, quick: bool = False) -> Iterator[Row]:
    """Yield the row of the cost per token, and one of how many streams it carries at once."""
    figures = asyncio.run(measure(windows=_WINDOWS, window_s=0.5 if quick else _WINDOW_S))
    middle = statistics.median(figures)
    quartiles = statistics.quantiles(figures, n=4)
    yield row(
        f"gateway CPU per streamed token, {STREAMS} streams x {TOKENS_PER_S:g} tokens/s",
        round(middle, 4),
        "ms",
        target=TARGET_MS,
        note=f"quartiles {quartiles[0]:.4f} to {quartiles[2]:.4f} over {len(figures)} windows",
    )
    streams = 500 if quick else MANY
    whole, took_s, cpu_s = asyncio.run(many(streams))
    yield row(
        f"{streams} streams requested at once that complete",
        whole,
        "streams",
        target="all",
        met=whole == streams,
        note=f"{MANY_TOKENS} tokens each, the last after {took_s:.1f} s; {cpu_s:.1f} s of the gateway's CPU",
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["engine"]:
        asyncio.run(_engine())
    else:
        for line in rows(quick="--quick" in sys.argv):
            print(json.dumps(line), flush=True)
