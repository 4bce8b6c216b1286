"""The database of runs, journal rows, checkpoints, model calls, effects and answers, on SQLite or PostgreSQL.

Start at `run_store.py` (RunStore) and `tables.py`. Besides LangGraph's saver, only this package imports SQLAlchemy.

address.py     where a database is: a SQLite file, a PostgreSQL server
tables.py      the tables as they are now
migrate.py     whether a database has them; upgrade.py and versions/ bring it there (revisions.py: their names)
rows.py        records to rows and back; texts.py: strings that a database cannot hold
statements.py  what is written
committer.py   the thread that writes, and waits for a server that is gone
failures.py    the databases' errors in our words
tallies.py     how much was done in a run
store.py       RunStore
reader.py      the reading half of it for commands that only look, without SQLAlchemy
unwritable.py  looking into a file that cannot be written
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.runtime.store.run_counts import Tally

if TYPE_CHECKING:
    from ramify.runtime.store.run_store import RunStore

__all__ = ["RunStore", "Tally"]


def __getattr__(name: str) -> object:
    if name == "RunStore":  # half a second of imports, which a `Reader` does without
        from ramify.runtime.store.run_store import RunStore

        return RunStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
