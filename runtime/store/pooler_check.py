"""Find out whether a connection pooler gives each transaction another session, such as PgBouncer in transaction mode.

The search path and prepared statements belong to a session of PostgreSQL. Behind such a pooler the transactions of
one client use several sessions, and several clients share one. So the settings must be made in each transaction
(`engines.py`). What needs a session, such as LangGraph's saver, refuses such an address. A pooler that gives each
statement another session is refused by all.

A session is identified by the pid of its server process, which the protocol reports when a client connects. If the
server reports the same pid by SQL, there is no pooler. Otherwise the pooler is tested: two connections must have
different pids, and each must keep its pid in all transactions. A pooler in session mode passes. Where sessions are
not shared, each later batch checks the pid again (`batch_writer.py`).
"""

from __future__ import annotations

import itertools

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ramify.runtime.errors import StoreError
from ramify.runtime.store.address import Address
from ramify.runtime.store.database_errors import SHARED_SESSIONS, STATEMENT_POOLING, sessions_are_shared
from ramify.runtime.store.engines import without_settings

ROUNDS = 4


class SessionsShared(StoreError):
    """The database is behind a pooler that does not keep a session per client."""


def shares_sessions(address: Address) -> bool:
    """Whether a pooler before the server shares sessions. Raises `SessionsShared` if it has no transactions."""
    engine = without_settings(address)
    try:
        return _shares_sessions(engine, address)
    finally:
        engine.dispose()


def refuse_shared_sessions(engine: Engine, address: object) -> None:
    """Raise `SessionsShared` if a pooler shares sessions. Does nothing on SQLite."""
    if engine.dialect.name == "postgresql" and _shares_sessions(engine, address):
        raise refused(address)


def refused(address: object) -> SessionsShared:
    return SessionsShared(f"the database {address} cannot be used: {SHARED_SESSIONS}")


def _shares_sessions(engine: Engine, address: object) -> bool:
    try:
        with engine.connect() as one:
            if _is_direct(one):
                return False
            with engine.connect() as other:
                return _share(one, other)
    except DBAPIError as error:
        if not sessions_are_shared(error):
            raise
        if "statement pooling" in str(error.orig):
            raise SessionsShared(f"the database {address} cannot be used: {STATEMENT_POOLING}") from error
        return True


def session_of(connection: Connection) -> int:
    """Return the pid of the server process that executes this transaction."""
    # each time another text, because the driver prepares statements that are repeated
    return int(connection.exec_driver_sql(f"SELECT pg_backend_pid() /* {next(_numbers)} */").scalar_one())


_numbers = itertools.count()


def _is_direct(connection: Connection) -> bool:
    own = connection.connection.driver_connection
    told = None if own is None else own.pgconn.backend_pid
    with connection.begin():
        return session_of(connection) == told


def _share(one: Connection, other: Connection) -> bool:
    """Whether two connections share a session, or one of them changes its session.

    The connections take turns in who begins. A pool of two sessions that lends the one that was idle for longest
    would otherwise give each connection the same one every time.
    """
    sessions: dict[Connection, set[int]] = {one: set(), other: set()}

    def seen() -> bool:
        return any(len(pids) > 1 for pids in sessions.values()) or bool(sessions[one] & sessions[other])

    first, second = one, other
    for _ in range(ROUNDS):
        with first.begin():
            sessions[first].add(session_of(first))
        with second.begin():  # this connection keeps a session for the whole block
            sessions[second].add(session_of(second))
            if seen():  # checked at once: if the pool has only one session, the next line would wait for ever
                return True
            with first.begin():
                sessions[first].add(session_of(first))
        if seen():
            return True
        first, second = second, first
    return False
