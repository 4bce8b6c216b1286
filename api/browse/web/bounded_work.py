"""Work for one request in a thread, bounded by a deadline and by the client's patience."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request

T = TypeVar("T")

Stopped = Callable[[], bool]
"""Whether the work should end with what it has."""
DEADLINE_S = 10.0


async def in_thread(
    request: Request, work: Callable[[Stopped], T], *, clock: Callable[[], float] = time.monotonic
) -> T:
    """The result of `work` in a thread. `work` gets a function that returns true after `DEADLINE_S`, or once the
    client is gone, or the server stops. Only for requests without a body."""
    until = clock() + DEADLINE_S
    unwanted = threading.Event()
    watching = asyncio.create_task(_watch(request, unwanted))
    try:
        return await asyncio.to_thread(work, lambda: unwanted.is_set() or clock() > until)
    finally:
        unwanted.set()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(request: Request, unwanted: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    unwanted.set()
