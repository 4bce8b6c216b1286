"""`ReleaseRoute`: tells an engine at a URL that no call will continue some branches of a workflow.

Ramify gateways and vLLM engines with our plug-in and its middleware take this. Both say so by a header of their list
of models. No other server is told anything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.protocol import wire
from ramify.serving.protocol.releases import parts

_TAKES = (wire.GATEWAY_HEADER, wire.RELEASES_HEADER)
_ASK_AGAIN_S = 60.0  # an engine that takes none may have been started anew with our middleware
_ANSWER_S = 10.0
_MOST_WAITING = 256  # releases that wait for an engine: it does not hear of more


class ReleaseRoute:
    """The route of one engine. Call it to tell the engine. One message is on its way at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._takes: bool | None = None  # None: not known
        self._asked_at = 0.0
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def __call__(self, compound_id: str, branches: Sequence[str] | None) -> bool:
        """Tell the engine. False if it does not take that, did not answer, or is too far behind. Raises nothing."""
        if self._waiting >= _MOST_WAITING:
            return False
        self._waiting += 1
        try:
            async with self._turn:
                return await self._tell(compound_id, branches)
        finally:
            self._waiting -= 1

    async def _tell(self, compound_id: str, branches: Sequence[str] | None) -> bool:
        if not await self._is_taken():
            return False
        whole = {"compound_id": compound_id}
        messages = [whole] if branches is None else [{**whole, "branches": part} for part in parts(branches)]
        heard = [await self._post(json.dumps(message).encode()) for message in messages]
        return bool(heard) and all(heard)

    async def _post(self, body: bytes) -> bool:
        answer = await self._upstream.beside_calls(wire.RELEASE_PATH, body, within_s=_ANSWER_S)
        if answer is None or answer[0].status_code != 200:
            self._takes = None  # another server may stand there now
            return False
        try:
            return wire.parse_object(answer[1]).get("engines") != 0
        except wire.Malformed:
            return True

    async def _is_taken(self) -> bool:
        now = self._upstream.awake.time()
        if self._takes is None or (not self._takes and now >= self._asked_at + _ASK_AGAIN_S):
            answer = await self._upstream.beside_calls("/models", within_s=_ANSWER_S)
            if answer is None or answer[0].status_code != 200:
                return False
            self._takes, self._asked_at = any(name in answer[0].headers for name in _TAKES), now
        return self._takes
