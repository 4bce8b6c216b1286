"""The queries for the rows of a run, as text for the driver, and what it returns as rows.

SQLAlchemy takes longer to write such a statement than a database to answer it, and each process writes it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramify.runtime.store.stored_texts import ESCAPED, unescape_text

RUN = "SELECT * FROM runs WHERE id = ?"
ANSWERS = "SELECT * FROM answers ORDER BY n"
ANSWERS_OF_RUN = "SELECT * FROM answers WHERE run_id = ? ORDER BY n"


def of_run(table: str) -> str:
    """Return the query for the rows of a table of numbered rows. Its values: `since`."""
    return f"SELECT * FROM {table} WHERE run_id = ? AND seq >= ? ORDER BY seq, n"


def since(run_id: str, after: int) -> tuple[str, int]:
    return run_id, after + 1 if after else 0  # the first checkpoint has the number 0


def ledger(table: str) -> str:
    return f"SELECT * FROM {table} WHERE run_id = ? ORDER BY n"


def texts(count: int) -> str:
    return f"SELECT * FROM blobs WHERE digest IN ({', '.join('?' * count)})"


def as_rows(names: Sequence[str], fetched: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return rows as the columns `names` and the values of each row. Texts are as they were given."""
    found = [dict(zip(names, row, strict=True)) for row in fetched]
    for name, column in zip(names, zip(*fetched, strict=True), strict=False):
        if ESCAPED in "".join([value for value in column if type(value) is str]):  # rare
            for row in found:
                row[name] = unescape_text(row[name]) if type(row[name]) is str else row[name]
    return found
