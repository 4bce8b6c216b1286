"""`ReleaseRoute`: tells an engine at a URL that no call will continue some branches of a workflow.

Ramify gateways and vLLM engines with our plug-in and its middleware take this. Both say so by a header of their list
of models. No other server is told anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.protocol import wire

_TAKES = (wire.GATEWAY_HEADER, wire.RELEASES_HEADER)
_ASK_AGAIN_S = 60.0  # an engine that takes none may have been started anew with our middleware
_ANSWER_S = 10.0


class ReleaseRoute:
    """The route of one engine. Call it to tell the engine."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._takes: bool | None = None  # None: not known
        self._asked_at = 0.0

    async def __call__(self, compound_id: str, branches: Sequence[str] | None) -> bool:
        """Tell the engine. False if it does not take that, or did not answer. Raises nothing."""
        if not await self._is_taken():
            return False
        body = {"compound_id": compound_id, **({} if branches is None else {"branches": list(branches)})}
        answer = await self._upstream.beside_calls(wire.RELEASE_PATH, json.dumps(body).encode(), within_s=_ANSWER_S)
        if answer is None or answer.status_code != 200:
            self._takes = None  # another server may stand there now
            return False
        return True

    async def _is_taken(self) -> bool:
        now = self._upstream.awake.time()
        if self._takes is None or (not self._takes and now >= self._asked_at + _ASK_AGAIN_S):
            answer = await self._upstream.beside_calls("/models", within_s=_ANSWER_S)
            if answer is None or answer.status_code != 200:
                return False
            self._takes, self._asked_at = any(name in answer.headers for name in _TAKES), now
        return self._takes
