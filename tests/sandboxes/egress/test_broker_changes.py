"""Changes of the allow-list while connections are open."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ramify.sandboxes.egress.broker import EgressBroker, Slots
from ramify.sandboxes.egress.errors import PortTaken
from ramify.sandboxes.egress.hosts import FixedResolver
from ramify.sandboxes.egress.settings import PORT, Egress
from tests.sandboxes.egress.brokered_hosts import local, log
from tests.sandboxes.egress.conftest import Server, Start


async def test_change_cuts_what_is_not_allowed_any_more(start: Start, server: Server) -> None:
    server.hold = asyncio.Event()
    made = await start(local(server, f"stays.test:{server.port}"))
    assert isinstance(made.broker.egress.resolver, FixedResolver)
    made.broker.egress.resolver.names["stays.test"] = ["127.0.0.1"]
    tunnels = {}
    for name in ("ok", "stays"):
        reader, writer = tunnels[name] = await made.connect()
        writer.write(f"CONNECT {name}.test:{server.port} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
    resolver = made.broker.egress.resolver
    await made.broker.apply(Egress([f"stays.test:{server.port}", f"127.0.0.1:{server.port}"], resolver=resolver))
    with pytest.raises(ConnectionResetError):
        await tunnels["ok"][0].read()
    tunnels["stays"][1].write(b"GET / HTTP/1.1\r\n\r\n")
    server.hold.set()
    assert b" 200 OK" in await tunnels["stays"][0].read()
    assert (await made.ask(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % server.port)).startswith(b"HTTP/1.1 403")
    for _, writer in tunnels.values():
        writer.close()
    await made.settled()
    assert sorted(log(made)) == sorted(
        [("connect", "ok.test", "cut"), ("connect", "ok.test", "refused"), ("connect", "stays.test", "done")]
    )


async def test_change_opens_and_closes_ports(start: Start, server: Server) -> None:
    made = await start(Egress([]))
    await made.broker.apply(local(server))
    assert b" 200 " in await made.ask(b"GET / HTTP/1.1\r\n\r\n", server.port)
    await made.broker.apply(Egress([]))
    await asyncio.sleep(0)
    with pytest.raises(OSError):
        await made.connect(server.port)


async def test_changes_at_once(start: Start, server: Server) -> None:
    made = await start(Egress([]))
    for _ in range(3):
        await asyncio.gather(*(made.broker.apply(egress) for egress in (local(server), Egress([]), local(server))))
        assert b" 200 " in await made.ask(b"GET / HTTP/1.1\r\n\r\n", server.port)


async def test_a_change_during_the_look_up_counts(start: Start, server: Server) -> None:
    looking, go = asyncio.Event(), asyncio.Event()

    class Slow(FixedResolver):
        async def __call__(self, name: str):  # type: ignore[no-untyped-def]
            looking.set()
            await go.wait()
            return await super().__call__(name)

    egress = local(server)
    made = await start(Egress(egress.allow, resolver=Slow({"ok.test": "127.0.0.1"})))
    asked = asyncio.ensure_future(made.ask(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % server.port))
    await looking.wait()
    await made.broker.apply(Egress([]))
    go.set()
    assert (await asked).startswith(b"HTTP/1.1 403")


async def test_the_worlds_end_ends_its_connections(start: Start, server: Server) -> None:
    server.hold = asyncio.Event()
    made = await start(local(server))
    reader, writer = await made.connect()
    writer.write(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % server.port)
    await reader.readuntil(b"\r\n\r\n")
    await made.broker.hang_up()
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    assert log(made) == [("connect", "ok.test", "cut")]


class Ports:
    """A world in which a command uses one port."""

    def __init__(self, taken: int) -> None:
        self.taken = taken
        self.asked: list[int] = []
        self.sockets: list[socket.socket] = []

    def ask(self, port: int) -> asyncio.Future[socket.socket]:
        self.asked.append(port)
        answer = asyncio.get_running_loop().create_future()
        if port == self.taken:
            answer.set_exception(PortTaken(f"port {port} is taken"))
        else:
            self.sockets.append(socket.create_server(("127.0.0.1", 0)))
            answer.set_result(self.sockets[-1])
        return answer

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


async def test_one_taken_port_does_not_keep_the_others_closed() -> None:
    broker, ports = EgressBroker(Egress([]), Slots(64), lambda: 0.0), Ports(7001)
    broker.open_ports(ports)
    with pytest.raises(PortTaken, match="7001"):
        await broker.apply(Egress(["127.0.0.1:7001", "127.0.0.1:7002"]))
    assert ports.asked == [PORT, 7001, 7002]
    await broker.hang_up()
