"""The events of runs on a node, kept until the program that waits for the run has fetched them."""

from __future__ import annotations

import asyncio
import io
import pickle
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from ramify.runtime.events import Event, LLMDone, Noticed, OpDone, PrefixHinted, Recovered, RunEnded, RunStarted
from ramify.runtime.records import RunId

MOST_AT_ONCE = 500
"""Events that one answer holds."""

WAIT_S = 10.0
"""How long a question waits for the next event."""


class EventRelay:
    """An observer. Events of runs that nobody watches are dropped. On one event loop."""

    def __init__(self) -> None:
        self._of: dict[RunId, list[Event]] = {}
        self._ended: set[RunId] = set()
        self._changed = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()

    def __call__(self, event: Event) -> None:
        kept = self._of.get(run_of(event))
        if kept is not None:
            kept.append(event)
            self._wake()

    def watch(self, run: RunId) -> None:
        """Keep the events of a run from now on."""
        self._of[run] = []
        self._ended.discard(run)

    def end(self, run: RunId) -> None:
        """No event of the run follows."""
        self._ended.add(run)
        self._wake()

    async def take(self, run: RunId) -> bytes | None:
        """Wait for events of a run, and return them, encoded; they may be none yet. None: no event follows."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: self._stirs(run)), WAIT_S)
            except TimeoutError:
                return encoded([])
        kept = self._of.get(run, [])
        batch, kept[:MOST_AT_ONCE] = kept[:MOST_AT_ONCE], []
        if not batch and (run in self._ended or run not in self._of):
            self._of.pop(run, None)
            self._ended.discard(run)
            return None
        return encoded(batch)

    def _stirs(self, run: RunId) -> bool:
        return bool(self._of.get(run)) or run in self._ended or run not in self._of

    def _wake(self) -> None:
        task = asyncio.ensure_future(self._notify())
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def run_of(event: Event) -> RunId:
    match event:
        case RunStarted() | RunEnded():
            return event.run.id
        case OpDone() | LLMDone():
            return event.row.run_id
        case Recovered() | Noticed() | PrefixHinted():
            return event.run


class _Pickler(pickle.Pickler):
    """Also takes the read-only mappings that rows have."""

    def reducer_override(self, value: Any) -> Any:
        return (_read_only, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


def encoded(events: Sequence[Event]) -> bytes:
    into = io.BytesIO()
    _Pickler(into).dump(list(events))
    return into.getvalue()


def decoded(data: bytes) -> list[Event]:
    """The events of `encoded`. They come from a process that the program itself started."""
    found: list[Event] = pickle.loads(data)
    return found
