"""Refuse a connection pooler that gives each transaction another session, such as PgBouncer in transaction mode.

A run's lock, the search path and prepared statements belong to a session of PostgreSQL. Behind such a pooler one
client's transactions use several sessions, and several clients use one: two machines could hold the same lock at
once.

A session is known by the pid of its server process. The protocol tells a client that pid when it connects. Where the
server, asked by SQL, gives the same one, nothing stands in between. Otherwise there is a pooler, and it is put to the
test: two connections of ours must have different pids, each the same in every transaction. A pooler in session mode
passes. Each batch that is committed later checks the pid again (committer.py).
"""

from __future__ import annotations

import itertools

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ramify.runtime.errors import StoreError
from ramify.runtime.store.database_errors import SHARED_SESSIONS, sessions_are_shared

ROUNDS = 3


class SessionsShared(StoreError):
    """The database is reached through a pooler that keeps no session for a client."""


def refuse_shared_sessions(engine: Engine, address: object) -> None:
    """Raises `SessionsShared`. Nothing on SQLite."""
    if engine.dialect.name != "postgresql":
        return
    try:
        with engine.connect() as one:
            if _is_direct(one):
                return
            with engine.connect() as other:
                shared = _share(one, other)
    except DBAPIError as error:
        if not sessions_are_shared(error):
            raise
        raise refused(address) from error
    if shared:
        raise refused(address)


def refused(address: object) -> SessionsShared:
    return SessionsShared(f"the database {address} cannot be used: {SHARED_SESSIONS}")


def session_of(connection: Connection) -> int:
    """The pid of the server process that has this transaction."""
    # never twice the same text: the driver prepares a statement that it sees again and again
    return int(connection.exec_driver_sql(f"SELECT pg_backend_pid() /* {next(_numbers)} */").scalar_one())


_numbers = itertools.count()


def _is_direct(connection: Connection) -> bool:
    own = connection.connection.driver_connection
    told = None if own is None else own.pgconn.backend_pid
    with connection.begin():
        return session_of(connection) == told


def _share(one: Connection, other: Connection) -> bool:
    """Whether two clients were seen to share a session, or one to change its own."""
    ones: set[int] = set()
    others: set[int] = set()

    def seen() -> bool:
        return len(ones) > 1 or len(others) > 1 or bool(ones & others)

    for _ in range(ROUNDS):
        with one.begin():
            ones.add(session_of(one))
        with other.begin():  # it has a session for the whole block
            others.add(session_of(other))
            if seen():  # asked at once: the other would wait for ever where this is the pool's only session
                return True
            with one.begin():
                ones.add(session_of(one))
        if seen():
            return True
    return False
