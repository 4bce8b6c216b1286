"""Which call is why an engine stands still.

llama.cpp works on all its calls in one loop. A shape with too many ways holds that loop up, for everybody, and also
after its client has left. An engine whose loop does not turn is ended and started again (pulse.py), and its calls are
done by the next one; but not the one that would hold that up as well.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from ramify.serving.gateway.engines.constraint_budget import SHAPES, TOO_COSTLY, has_shape
from ramify.serving.gateway.errors import ApiError

if TYPE_CHECKING:
    from ramify.serving.gateway.engines.upstream import Upstream
    from ramify.serving.gateway.records.calls import Call

STOOD_STILL = "engine_stood_still"
_MOST = 2  # engines that a call with a shape may have been in when they stood still


class ConstrainedCalls:
    """The calls with shapes that have been in an engine since its loop was last seen to turn."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._since: set[int] = set()

    @contextmanager
    def inside(self, call: Call) -> Iterator[None]:
        """While the engine works on it."""
        self._inside.add(call.id)
        self._since.add(call.id)
        try:
            yield
        finally:
            self._inside.discard(call.id)

    @property
    def suspected(self) -> bool:
        """May one of them hold the loop up?"""
        return bool(self._since)

    def asking(self) -> set[int]:
        """Those that have left before the loop is asked whether it turns."""
        return self._since - self._inside

    def turned(self, gone: set[int]) -> None:
        """It does: they are not why it stands still later."""
        self._since -= gone

    def blame(self, call: Call, body: Mapping[str, object]) -> ApiError | None:
        """Of a call that was in the engine when that stood still: the error, where it is why. Where other shapes were
        in it, that is not known until the call was in a second one."""
        if call.id not in self._since:
            return None
        call.stood_still += 1
        if self._since != {call.id} and call.stood_still < _MOST:
            return None
        return _too_costly(body, "the engine stood still over this shape, and was started again")


@asynccontextmanager
async def limited(upstream: Upstream, call: Call, body: Mapping[str, object], *, loops: bool) -> AsyncIterator[None]:
    """While an engine works on a call. One that asks for a shape, of an engine that works in one loop, has as long as
    a whole answer may take: each of its tokens may cost everybody seconds. Raises ApiError."""
    if not has_shape(body):
        yield
        return
    with upstream.shaped.inside(call):
        try:
            async with upstream.awake.timeout(upstream.whole_s if loops else math.inf):
                yield
        except TimeoutError:
            raise _too_costly(body, f"no whole answer of this shape came within {upstream.whole_s:g} s") from None


def _too_costly(body: Mapping[str, object], why: str) -> ApiError:
    field = next((name for name in SHAPES if body.get(name)), None)
    return ApiError(400, TOO_COSTLY, f"{field}: {why}: ask for a simpler one", field)
