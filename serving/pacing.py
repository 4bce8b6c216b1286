"""`Pacer`: holds tokens that come faster than they are read, and gives them out at the reader's pace (Andes, §5).

Token i is given out at max(d_i, the one before + 1 / speed), and never before the first is due. Nothing is dropped.
The class is pure: it says when, and `paced` waits. `pacer.js` beside it does the same in a browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from math import inf, isfinite
from typing import TypeVar

_T = TypeVar("_T")
_PIECE_CHARACTERS = 12  # longer pieces hold several tokens
_TOKEN_CHARACTERS = 4.4  # of English text, in the mean: words of 4.7 letters and a space, 1.3 tokens each


def tokens_to_read(text: str) -> float:
    """Return for how many tokens a piece of an answer counts: engines may put several into one event."""
    return len(text) / _TOKEN_CHARACTERS if len(text) > _PIECE_CHARACTERS else float(bool(text))


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

    def buffered_s(self, now: float) -> float:
        """Return for how many seconds the reader has enough, counting what is held."""
        return max(0.0, self.next_at - now)


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
