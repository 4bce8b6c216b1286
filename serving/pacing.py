"""`Pacer`: holds tokens that come faster than they are read, and gives them out at the reader's pace (Andes, §5).

Token i is given out at max(d_i, the one before + 1 / speed), and never before the first is due. Nothing is dropped.
The class is pure: it says when, and `paced` and `PacedDelivery` wait. `pacer.js` beside it does the same in a
browser.

`PacedDelivery` gives the events of one stream of the gateway out, after the engine is done with them: the engine's
stream is read as fast as it comes, so its slot is free when it has made the last token. What its reader has no use
for yet is held, up to `HELD_BYTES`; then the oldest events go out early. Events are never changed, dropped or put
in another order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from math import inf, isfinite
from typing import Self, TypeVar

_T = TypeVar("_T")
_PIECE_CHARACTERS = 12  # longer pieces hold several tokens
TOKEN_CHARACTERS = 4.4  # of English text, in the mean: words of 4.7 letters and a space, 1.3 tokens each


def tokens_to_read(text: str) -> float:
    """Return for how many tokens a piece of an answer counts: engines may put several into one event."""
    return len(text) / TOKEN_CHARACTERS if len(text) > _PIECE_CHARACTERS else float(bool(text))


class Pacer:
    """The times at which one stream's pieces are given out.

    tbt_s: seconds for a token, 1 / the reader's speed. Raises ValueError unless it is above 0.
    first_at: no piece is given out before; on the caller's clock. By default the first goes out as it comes.
    """

    def __init__(self, tbt_s: float, first_at: float = -inf) -> None:
        if not (tbt_s > 0 and isfinite(tbt_s)):
            raise ValueError(f"tbt_s is {tbt_s}: a pace needs seconds above 0 for each token")
        self._tbt_s = tbt_s
        self.next_at = first_at  # the earliest time for the next token

    def due(self, at: float, tokens: float = 1) -> float:
        """Return when a piece that came at `at` is given out. The next one waits until its tokens are read."""
        given = max(at, self.next_at)
        self.next_at = given + tokens * self._tbt_s
        return given


async def paced(
    pieces: AsyncGenerator[_T, None],
    pacer: Pacer,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    tokens: Callable[[_T], float] = lambda _: 1.0,
) -> AsyncGenerator[_T, None]:
    """Yield the pieces, each of so many tokens, at the pacer's times.

    Raises what their source raises, after what came first.

    The source is read on while a piece is held, so a server is done with the answer as soon as it has made it.
    """
    held: asyncio.Queue[tuple[float, _T] | None] = asyncio.Queue()

    async def fetch() -> None:
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    held.put_nowait((pacer.due(clock(), tokens(piece)), piece))
        finally:
            held.put_nowait(None)

    task = asyncio.create_task(fetch())
    try:
        while (one := await held.get()) is not None:
            at, piece = one
            if (wait_s := at - clock()) > 0:
                await sleep(wait_s)
            yield piece
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


HELD_BYTES = 1024 * 1024  # of one stream; events of about 4,000 tokens


class PacedDelivery:
    """Sends the events of one stream at the pacer's times. An async context manager; leaving it drops what is held.

    send: sends bytes to the client, and returns when there is room for more. `clock` is the pacer's.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        pacer: Pacer,
        clock: Callable[[], float],
        most_bytes: int = HELD_BYTES,
    ) -> None:
        self._send, self._pacer, self._clock, self._most = send, pacer, clock, most_bytes
        self._held: deque[tuple[float, bytes]] = deque()  # when to send, and what
        self._bytes = 0
        self._hurries = False
        self._sending = False
        self._wake = asyncio.Event()  # something to send, and sooner than was known
        self._moved = asyncio.Event()  # something was sent
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._deliver())
        self._task.add_done_callback(lambda _: self._moved.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def put(self, event: bytes, tokens: float) -> None:
        """Take an event with so many tokens to read. One without tokens goes out right after the one before it.

        Waits only for a client that does not take what is sent. Raises what `send` raised.
        """
        now = self._clock()
        at = self._pacer.due(now, tokens) if tokens else self._held[-1][0] if self._held else now
        self._held.append((at, event))
        self._bytes += len(event)
        if len(self._held) == 1 or self._full:
            self._wake.set()
        await self._until(lambda: not self._full)

    def hurry(self) -> None:
        """Send all that is held at once, and from now on each event as it comes."""
        self._hurries = True
        self._wake.set()

    async def drained(self) -> None:
        """Return when all events are sent. Raises what `send` raised."""
        await self._until(lambda: not self._held and not self._sending)

    @property
    def _full(self) -> bool:
        return self._bytes > self._most

    async def _until(self, reached: Callable[[], bool]) -> None:
        assert self._task is not None
        while not reached():
            if self._task.done():
                self._task.result()
            self._moved.clear()
            await self._moved.wait()

    async def _deliver(self) -> None:
        while True:
            await self._due()
            if data := self._taken():
                self._sending = True
                await self._send(data)
                self._sending = False
                self._moved.set()

    async def _due(self) -> None:
        """Return when the first event is to be sent."""
        while not self._held or not (self._hurries or self._full):
            wait_s = self._held[0][0] - self._clock() if self._held else None
            if wait_s is not None and wait_s <= 0:
                return
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _taken(self) -> bytes:
        """Take off all events that are due, or the oldest while there are too many."""
        now, out = self._clock(), list[bytes]()
        while self._held and (self._hurries or self._full or self._held[0][0] <= now):
            _, event = self._held.popleft()
            self._bytes -= len(event)
            out.append(event)
        return b"".join(out)
