"""Large and unfinished bodies hinder nobody else."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import Request
from starlette.types import Message

from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.gateway import UnfinishedBodies
from ramify.serving.gateway.http.exchange import LARGE_BODY, body_of

SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": []}


class Client:
    """Sends the parts of a body that it is given."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[Message] = asyncio.Queue()
        self.request = Request(SCOPE, self.parts.get)

    def send(self, data: bytes, *, last: bool = False) -> None:
        self.parts.put_nowait({"type": "http.request", "body": data, "more_body": not last})


async def a_few_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_other_calls_go_on_while_a_large_body_is_parsed() -> None:
    client = Client()
    client.send(json.dumps({"items": [{} for _ in range(LARGE_BODY // 4)]}).encode(), last=True)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going = asyncio.create_task(other())
    body = await body_of(client.request, UnfinishedBodies())
    assert len(body["items"]) == LARGE_BODY // 4  # type: ignore[arg-type]
    assert turns, "the loop had no turn while the body was parsed"
    going.cancel()


async def test_unfinished_bodies_hold_bounded_memory() -> None:
    bodies = UnfinishedBodies(most=1000)
    clients = [Client() for _ in range(60)]
    reading = []
    for client in clients:
        reading.append(asyncio.create_task(body_of(client.request, bodies)))
        client.send(b"[" * 300)
        await a_few_turns()
        assert bodies.bytes <= 1000
    ended = await asyncio.gather(*reading[:-3], return_exceptions=True)
    assert {error.status for error in ended if isinstance(error, ApiError)} == {408}
    assert not any(task.done() for task in reading[-3:])
    quick = Client()
    quick.send(b'{"a": "' + b"x" * 500 + b'"}', last=True)
    assert set(await body_of(quick.request, bodies)) == {"a"}
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    assert bodies.bytes == 0


async def test_one_body_may_be_larger_than_all_may_hold() -> None:
    client = Client()
    client.send(b'{"a": "' + b"x" * 500 + b'"}', last=True)
    assert await body_of(client.request, UnfinishedBodies(most=10))


async def test_a_body_that_does_not_end_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        async with UnfinishedBodies().reading(seconds=0):
            await asyncio.Event().wait()


async def test_a_gateway_that_stops_does_not_wait_for_unfinished_bodies() -> None:
    bodies, client, late = UnfinishedBodies(), Client(), Client()
    client.send(b"{")
    reading = asyncio.create_task(body_of(client.request, bodies))
    await a_few_turns()
    bodies.stop()
    with pytest.raises(ApiError) as stopped:
        await reading
    assert (stopped.value.status, stopped.value.code) == (503, "stopping")
    with pytest.raises(ApiError, match="stopping"):
        await body_of(late.request, bodies)
