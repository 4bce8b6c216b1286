"""Notice deletions by other processes, so that no writer names rows that are gone.

A writer remembers ids of the threads and values that it wrote. Each deletion increments a number in the database, the
deletion epoch. Each writing transaction first checks that the epoch is the one it knows; otherwise the writer forgets
what it remembers. SQLite has one writer at a time. On a server, writers share a lock on the number, and a deleting
transaction waits for them and locks it alone (decision 017).
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Dialect, select, text

from ramify.runtime.langgraph.checkpointer.statements import PendingRows, Prepared
from ramify.runtime.langgraph.checkpointer.tables import deletion_epoch_table


class DeletionEpoch:
    """One writer's view of the epoch. `forget` is called when another process deleted something."""

    def __init__(self, dialect: Dialect, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._number: int | None = None
        look = select(deletion_epoch_table.c.number)
        self._look = {read: Prepared(look.with_for_update(read=read), dialect, ()) for read in (True, False)}
        shared = f"SELECT 1 FROM {deletion_epoch_table.name} WHERE number = :number FOR SHARE"
        self._still = Prepared(text(f"SELECT 1 / count(*) FROM ({shared}) AS still"), dialect, ("number",))

    def enter(self, connection: Connection, rows: PendingRows, *, shared: bool) -> None:
        """Check the epoch before anything is written. Rows that are put into `rows` optimistically are refused if
        something was deleted. Maintenance reads with several statements or deletes, so it passes `shared=False`:
        nobody else writes meanwhile."""
        if not rows.optimistic or self._number is None:
            found = self._look[shared](connection).fetchone()
            assert found is not None, "`tables.make` put it there"
            if found[0] != self._number:
                self._forget()
                self._number = found[0]
        if rows.optimistic:
            rows.only(self._still, self._number)

    def read_again(self) -> None:
        """Read the epoch again next time, because a transaction was rolled back."""
        self._number = None

    def begin_deleting(self, connection: Connection) -> None:
        """Let the rest of the transaction delete: other writers wait for its end, then forget."""
        connection.execute(deletion_epoch_table.update().values(number=deletion_epoch_table.c.number + 1))
        self._number = None
        self._forget()
