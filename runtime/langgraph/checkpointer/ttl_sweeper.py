"""A thread that deletes expired items of a store from time to time."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Self

from ramify.runtime.langgraph.checkpointer.database import Ready

_log = logging.getLogger(__name__)


class Sweeping(Ready, concurrent.futures.Future[None]):
    """A sweeper that was started. It is done when the sweeper has ended; `cancel` ends it. Awaiting it gives itself
    at once, since it stands for the task that LangGraph's async stores return."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()
        self.add_done_callback(lambda _: self.ended.set())

    @classmethod
    def none(cls) -> Self:
        """Return one that has ended: there is nothing to sweep."""
        sweeping = cls()
        sweeping.set_result(None)
        return sweeping


class TTLSweeper:
    """Calls `sweep` at an interval, at most once at a time. An error of one call is logged, and the next one tries
    again."""

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._sweeping: Sweeping | None = None
        self._thread: threading.Thread | None = None

    def start(self, interval_s: float) -> Sweeping:
        """Start, unless it runs. Return the running one."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = Sweeping()
            arguments = self._sweep, self._sweeping, interval_s
            self._thread = threading.Thread(target=_run, args=arguments, name="ttl-sweeper", daemon=True)
            self._thread.start()
        return self._sweeping

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop it, and wait until it has. Return False if it has not stopped after `timeout_s`."""
        if self._sweeping is None or self._thread is None:
            return True
        self._sweeping.ended.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def _run(sweep: Callable[[], int], sweeping: Sweeping, interval_s: float) -> None:
    while not sweeping.ended.wait(interval_s):
        try:
            sweep()
        except Exception:  # noqa: BLE001  such as a database that is down for a while
            _log.exception("a sweep of expired items failed")
    if sweeping.set_running_or_notify_cancel():
        sweeping.set_result(None)
