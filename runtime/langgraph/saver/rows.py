"""What a transaction of the saver writes at its end; on a server in one statement, and one round trip.

On a server the way there takes longer than a row, and a pipeline of statements longer than one statement that holds
them. So what needs no answer waits for the end, where it is a transaction by itself. An answer would be needed of
whether a value, or a task's writes, are there already. As far as this process knows they are not, so they are
inserted as new (`boldly`): where another process was faster the server refuses all of it, and it is done again in a
transaction that waits for each answer (decision 017).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from ramify.runtime.langgraph.saver.statements import Prepared, one_trip, together
from ramify.runtime.langgraph.saver.writer import Asks

_AT_MOST = 1 << 14  # parameters of one statement: PostgreSQL takes 65,535


@dataclass(frozen=True, slots=True)
class _Row:
    put: Prepared
    given: tuple[Any, ...]
    where_there: Callable[[Connection], None] | None


class Rows:
    """Of one transaction at a time. `boldly`: what is not known to be there is new."""

    def __init__(self) -> None:
        self.boldly = False
        self._rows: list[_Row] = []
        self._takes = 0
        self._only: tuple[Prepared, tuple[Any, ...]] | None = None

    def begin(self, boldly: bool) -> None:
        self.boldly = boldly
        self._only = None
        self._takes = 0
        self._rows.clear()

    def only(self, unless: Prepared, *given: Any) -> None:
        """A SELECT that fails where nothing may be written."""
        self._only = unless, given

    def put(self, statement: Prepared, *given: Any, where_there: Callable[[Connection], None] | None = None) -> None:
        """`where_there`: what is done where a row of that name was there before. What asks, or is more than one
        statement takes, is not done boldly."""
        self._takes += len(given)
        if self.boldly and (where_there is not None or self._takes > _AT_MOST):
            raise Asks
        self._rows.append(_Row(statement, given, where_there))

    def write(self, connection: Connection, commit: Callable[[], None]) -> None:
        """All that was put, and the commit."""
        rows, self._rows = self._rows, []
        if self.boldly:
            self._write_boldly(connection, rows)
        else:
            with one_trip(connection):
                done = [row.put(connection, *row.given) for row in rows]
            for row, cursor in zip(rows, done, strict=True):
                if row.where_there is not None and cursor.rowcount == 0:
                    row.where_there(connection)
        commit()

    def _write_boldly(self, connection: Connection, rows: list[_Row]) -> None:
        unless, given = self._only or (None, ())
        statement = together([row.put for row in rows], unless)
        statement(connection, *(one for row in rows for one in row.given), *given)
