"""Several processes keep one house: what one of them deletes, another must not go on to name.

A writer remembers what it wrote: threads and values by their numbers. So each deletion counts the house's number up,
and each transaction that writes looks first whether it is still the one it knows; otherwise it forgets what it
remembers. SQLite has one writer at a time. On a server those that write share a lock on the number, and who deletes
waits for them and holds it alone (decision 018).
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Dialect, select, text

from ramify.runtime.langgraph.checkpointer.statements import Prepared, Rows
from ramify.runtime.langgraph.checkpointer.tables import house


class House:
    """One writer's view. `forget` is called where another deleted something."""

    def __init__(self, dialect: Dialect, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._number: int | None = None
        look = select(house.c.number)
        self._look = {read: Prepared(look.with_for_update(read=read), dialect, ()) for read in (True, False)}
        shared = f"SELECT 1 FROM {house.name} WHERE number = :number FOR SHARE"
        self._still = Prepared(text(f"SELECT 1 / count(*) FROM ({shared}) AS still"), dialect, ("number",))

    def enter(self, connection: Connection, rows: Rows, *, shared: bool) -> None:
        """Before anything is written. What is put into `rows` boldly is refused where something was deleted. Not
        `shared` for upkeep, which reads by several statements, or deletes: meanwhile nobody else writes."""
        if not rows.boldly or self._number is None:
            found = self._look[shared](connection).fetchone()
            assert found is not None, "`tables.make` put it there"
            if found[0] != self._number:
                self._forget()
                self._number = found[0]
        if rows.boldly:
            rows.only(self._still, self._number)

    def unsure(self) -> None:
        """A transaction was rolled back: look again."""
        self._number = None

    def alone(self, connection: Connection) -> None:
        """From here to its end the transaction may delete: others who write wait for it, and forget."""
        connection.execute(house.update().values(number=house.c.number + 1))
        self._number = None
        self._forget()
