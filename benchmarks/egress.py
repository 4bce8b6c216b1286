"""Measure what egress costs a world: its start, a request, and the throughput of a tunnel.

    python benchmarks/egress.py [--quick] [--json]

The same client runs in a world with egress, and in a world on the host's own network, against one server in a process
of its own. The ratio is what the broker costs. Rows are medians; `--quick` takes a quarter of a minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row, median_row, options, row, show
from ramify.sandboxes.egress.hosts import FixedResolver
from ramify.sandboxes.egress.settings import PORT, Egress
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

SERVER = """
import asyncio, sys
BIG = b"x" * 65536
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            size = int(head.split(b" ")[1].rsplit(b"/", 1)[1])
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % size)
            while size:
                writer.write(BIG[:size])
                size -= min(size, len(BIG))
                await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
CLIENT = """
import json, socket, sys, time
kind, at, port, count, size = sys.argv[1], *map(int, sys.argv[2:])
def ask(sock, target):
    sock.sendall(b"GET %s HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % target)
    got = b""
    while b"\\r\\n\\r\\n" not in got: got += sock.recv(65536)
    left = size - len(got.partition(b"\\r\\n\\r\\n")[2])
    while left: left -= len(sock.recv(min(left, 1 << 20)))
took = []
for _ in range(count):
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", at)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        target = b"/%d" % size
        if kind == "request":
            target = b"http://server.test:%d/%d" % (port, size)
        if kind == "tunnel":
            sock.sendall(b"CONNECT server.test:%d HTTP/1.1\\r\\n\\r\\n" % port)
            got = b""
            while not got.endswith(b"\\r\\n\\r\\n"): got += sock.recv(1)
        ask(sock, target)
    took.append(time.perf_counter() - begun)
print(json.dumps(took))
"""
MEBIBYTE = 1 << 20


@contextmanager
def server() -> Iterator[int]:
    """Yield the port of a server in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def first_command(home: WorldHome, egress: Egress | None) -> float:
    """The milliseconds from nothing to the first answer of a new world."""
    begun = time.perf_counter()
    async with World.create(egress=egress, home=home) as world:
        await world.exec("true", check=True)
        return (time.perf_counter() - begun) * 1000


async def times(world: World, kind: str, at: int, port: int, count: int, size: int) -> list[float]:
    """The seconds of each of `count` answers of `size` bytes."""
    words = [sys.executable, "-c", CLIENT, kind, *map(str, (at, port, count, size))]
    told: list[float] = json.loads((await world.exec(words, check=True, timeout=300)).stdout)
    return told


async def measured(quick: bool, folder: Path) -> list[Row]:
    rounds, requests, mebibytes = (15, 200, 64) if quick else (60, 1000, 512)
    with server() as port:
        egress = Egress(
            [f"server.test:{port}", f"127.0.0.1:{port}"], resolver=FixedResolver({"server.test": "127.0.0.1"})
        )
        async with WorldHome(folder, "namespaces") as home:
            await first_command(home, None)
            begun: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(rounds):
                for brokered in (False, True):
                    begun[brokered].append(await first_command(home, egress if brokered else None))
            async with (
                World.create(egress=egress, home=home) as inside,
                World.create(network=True, home=home) as beside,
            ):
                asked = await times(inside, "request", PORT, port, requests, 2)
                direct = await times(beside, "direct", port, port, requests, 2)
                size = mebibytes * MEBIBYTE
                tunnel = await times(inside, "tunnel", PORT, port, 3, size)
                plain = await times(beside, "direct", port, port, 3, size)
    started = statistics.median(begun[False])
    rates = [[mebibytes / each for each in took] for took in (tunnel, plain)]
    return [
        median_row(
            "first command of a new world with egress",
            begun[True],
            "ms",
            target=round(1.2 * started, 2),
            peer="without egress",
            peer_value=started,
            note="the target is 1.2 times the peer",
        ),
        median_row(
            "a request through the broker, on a new connection",
            [each * 1000 for each in asked],
            "ms",
            target=3.0,
            peer="the host's network",
            peer_value=statistics.median(direct) * 1000,
        ),
        row(
            f"throughput of a tunnel, {mebibytes} MiB",
            statistics.median(rates[0]),
            "MiB/s",
            target=200,
            at_least=True,
            peer="the host's network",
            peer_value=statistics.median(rates[1]),
            spread=(min(rates[0]), max(rates[0])),
        ),
    ]


def main() -> None:
    asked = options(__doc__, "fewer rounds: a quarter of a minute in all").parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ramify-bench-", ignore_cleanup_errors=True) as folder:
        rows = asyncio.run(measured(asked.quick, Path(folder)))
    show(rows, asked.json, load=[round(one, 1) for one in (before, os.getloadavg()[0])])


if __name__ == "__main__":
    main()
