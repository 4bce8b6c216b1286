"""Retry a transaction or query after a lost connection or a conflict, with growing pauses."""

from __future__ import annotations

from collections.abc import Callable

from ramify.runtime.store.database_errors import is_connection_lost, is_serialization_failure

PATIENCE_S = 30.0
"""For how many seconds a lost connection is retried by default."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class Retries:
    """The attempts at one operation.

    patience_s: after how many seconds to give up. timer: returns monotonic seconds.
    """

    def __init__(self, patience_s: float, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._until = timer() + patience_s
        self._pause_s = FIRST_PAUSE_S

    def pause_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt. Raises `error` if a retry cannot help or time is up."""
        pause_s = self._pause_s
        if (
            not (is_connection_lost(error) or is_serialization_failure(error))
            or self._timer() + pause_s > self._until
        ):
            raise error
        self._pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        return pause_s
