"""What the saver, the store and the cache have in common: an address, and being opened and closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ramify.runtime.langgraph.saver.engines import open_engine
from ramify.runtime.langgraph.saver.tables import make
from ramify.runtime.store.address import parse
from ramify.runtime.store.committer import FIRST_PAUSE_S, LONGEST_PAUSE_S, PATIENCE_S
from ramify.runtime.store.failures import clashed, is_gone
from ramify.runtime.store.pooler import refuse_shared_sessions

T = TypeVar("T")


def opened(address: str | Path) -> Engine:
    """The database at an address, its tables made where they are missing."""
    try:
        engine = open_engine(address)
        try:
            refuse_shared_sessions(engine, parse(address))
            with engine.execution_options(write=True).begin() as connection:
                make(connection)
        except BaseException:
            engine.dispose()
            raise
    except DBAPIError as error:
        error.add_note(f"the checkpoints' database is {parse(address)}")
        raise
    return engine


class Opened:
    """`with Thing.open(address) as thing`, or `async with`; a mixin beside LangGraph's own base classes."""

    address: str | Path
    _engine: Engine
    _reader: Engine
    _clock: Callable[[], float]
    _closed = False

    @classmethod
    def open(cls, address: str | Path, **options: Any) -> Self:
        """As the constructor; for `with` and `async with`."""
        return cls(address, **options)  # type: ignore[call-arg]  # what the classes that use this take

    @classmethod
    def from_conn_string(cls, conn_string: str) -> Self:
        """As LangGraph's own classes have it."""
        return cls.open(conn_string)

    def setup(self) -> None:
        """Nothing: opening makes the tables. Here since LangGraph's own classes ask for it."""

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _begin(self, address: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.address, self._clock = address, clock
        self._engine = opened(address)
        server = self._engine.dialect.name == "postgresql"  # where each statement else sees what is there by then
        self._reader = self._engine.execution_options(**{"isolation_level": "REPEATABLE READ"} if server else {})

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A connection for one look, all of it at one state. A server that is gone is waited for, half a minute."""
        with self._patiently(lambda: self._reader.connect()) as connection:
            yield connection

    def _written(self, work: Callable[[Connection], T]) -> T:
        """What `work` gives, done in one transaction. It is done again where a server went away or gave the
        transaction up for another's: what is done twice has to leave the same."""

        def once() -> T:
            with self._engine.execution_options(write=True).begin() as connection:
                return work(connection)

        return self._patiently(once)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        if self._closed:
            raise RuntimeError(f"the {type(self).__name__.lower()} is closed: open it anew")
        until, pause = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S
        while True:
            try:
                return attempt()
            except DBAPIError as error:
                if not (is_gone(error) or clashed(error)) or time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
