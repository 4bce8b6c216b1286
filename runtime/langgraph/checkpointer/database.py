"""From an address (`sqlite:///FILE`, `postgresql://…`, or a path) to a database, and what the saver, the store and
the cache have in common: transactions, filters by keys, and results that may be awaited.

LangGraph has each saver and store twice: with functions, and with coroutines of the same names. Ours are both.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from ramify import paths
from ramify.runtime.langgraph.checkpointer.tables import make
from ramify.runtime.store.address import parse
from ramify.runtime.store.database_errors import BUSY_TIMEOUT_S, Retries
from ramify.runtime.store.engines import bind_to_process, prepare, sync_folder
from ramify.runtime.store.pooler_check import refuse_shared_sessions
from ramify.runtime.store.readonly_sqlite import connected


class Ready:
    """Awaiting it gives itself at once."""

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


class ReadyCount(Ready, int):
    """A number."""


def value_at(value: Any, key: str) -> Any:
    """Return the value under a key, as LangGraph's classes do: those on PostgreSQL take the key as it is, those on
    SQLite take "a.b" for "b" of the object "a". None if there is none."""
    if not isinstance(value, Mapping):
        return None
    if key in value or not isinstance(key, str) or "." not in key:
        return value.get(key)
    first, _, rest = key.partition(".")
    return value_at(value.get(first), rest)


def open_engine(address: str | Path) -> Engine:
    """Return an engine whose committed transactions survive a power cut.

    Raises `ValueError` for an invalid address, and for a database in memory, where nothing would be durable.
    """
    url = URL.create("sqlite", database=os.fspath(address)) if isinstance(address, Path) else _url(address)
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    if url.get_backend_name() == "postgresql":
        try:
            return bind_to_process(create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True))
        except ModuleNotFoundError as error:
            raise ValueError("PostgreSQL needs psycopg: pip install 'ramify[postgres]'") from error
    raise ValueError(f"no saver for {url.get_backend_name()}: use sqlite:///FILE or postgresql://HOST/DATABASE")


def open_read_only_engine(address: str | Path) -> Engine:
    """Return an engine for reading only. A SQLite file may be read-only, and is not created."""
    url = URL.create("sqlite", database=os.fspath(address)) if isinstance(address, Path) else _url(address)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return open_engine(address)
    file = Path(str(url.database))
    engine = create_engine("sqlite://", creator=lambda: connected(file, timeout_s=BUSY_TIMEOUT_S), poolclass=NullPool)
    # all reads of one transaction see one state
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def _url(address: str) -> URL:
    if "://" not in address:
        return URL.create("sqlite", database=address)
    try:
        return make_url(address)
    except ArgumentError:
        raise ValueError("not a database address: use sqlite:///FILE or postgresql://HOST/DATABASE") from None


def _sqlite(url: URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise ValueError("a saver stores its checkpoints: name a file, or use LangGraph's InMemorySaver")
    folder = Path(str(url.database)).absolute().parent
    paths.make_private(folder)
    paths.make_private_file(Path(str(url.database)).absolute())
    engine = create_engine(url.set(drivername="sqlite"))
    prepare(engine)
    engine.connect().close()
    sync_folder(folder)
    return engine


T = TypeVar("T")


def opened(address: str | Path, needed: Sequence[Table]) -> Engine:
    """Return an engine for the database at an address; make those of the needed tables that are missing."""
    try:
        engine = open_engine(address)
        try:
            refuse_shared_sessions(engine, parse(address))
            with engine.execution_options(write=True).begin() as connection:
                make(connection, needed)
        except BaseException:
            engine.dispose()
            raise
    except DBAPIError as error:
        error.add_note(f"the checkpoints' database is {parse(address)}")
        raise
    return engine


class DatabaseClient:
    """A class with `with Thing.open(address) as thing`, also `async with`: a mixin next to LangGraph's base
    classes."""

    address: str | Path
    _engine: Engine
    _reader: Engine
    _clock: Callable[[], float]
    _tables: ClassVar[Sequence[Table]]
    _closed = False
    _turns: tuple[int, threading.Lock]

    @classmethod
    def open(cls, address: str | Path, **options: Any) -> Self:
        """Return a new object, for use in `with` and `async with`. `options` are the constructor's."""
        return cls(address, **options)  # type: ignore[call-arg]  # what the classes that use this take

    @classmethod
    def from_conn_string(cls, conn_string: str) -> Self:
        """Open a connection string, as LangGraph's own classes do."""
        return cls.open(conn_string)

    def setup(self) -> Ready:
        """Do nothing, since opening makes the tables. LangGraph's own classes have this method; that of the async
        ones is awaited."""
        return Ready()

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
        self._turns = os.getpid(), threading.Lock()
        self._engine = opened(address, self._tables)
        # by default each statement would see rows that were committed in between
        server = self._engine.dialect.name == "postgresql"
        self._reader = self._engine.execution_options(**{"isolation_level": "REPEATABLE READ"} if server else {})

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Open a connection whose reads all see one state. If the server is gone, retry for half a minute."""
        with self._patiently(lambda: self._reader.connect()) as connection:
            yield connection

    def _written(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction and return its result. It is retried if the server was lost or refused the
        transaction in favour of another one, so doing it twice has to give the same."""

        def once() -> T:
            with self._turn(), self._engine.execution_options(write=True).begin() as connection:
                return work(connection)

        return self._patiently(once)

    def _turn(self) -> AbstractContextManager[Any]:
        """Wait for the other threads of this process that write. SQLite has one writer at a time: threads that poll
        for its lock would starve each other. A forked child may have copied a lock that nobody will release."""
        if self._engine.dialect.name != "sqlite":
            return nullcontext()
        if self._turns[0] != os.getpid():
            self._turns = os.getpid(), threading.Lock()
        return self._turns[1]

    def _patiently(self, attempt: Callable[[], T]) -> T:
        if self._closed:
            raise RuntimeError(f"the {type(self).__name__.lower()} is closed: open it again")
        retries = Retries()
        while True:
            try:
                return attempt()
            except DBAPIError as error:
                pause_s = retries.pause_after(error)
            time.sleep(pause_s)
