"""The database: runs, journal rows, checkpoints, model calls, effects. The only package, beside LangGraph's saver,
that imports SQLAlchemy.

address.py     where a database is: a SQLite file, a PostgreSQL server
tables.py      the tables as they are now
migrate.py     whether a database has them; upgrade.py and versions/ bring it there
rows.py        records to rows and back
statements.py  what is written
committer.py   the thread that writes, and waits for a server that is gone
failures.py    the databases' errors in our words
tallies.py     how much was done in a run
store.py       RunStore
"""

from ramify.runtime.store.store import RunStore
from ramify.runtime.store.tallies import Tally

__all__ = ["RunStore", "Tally"]
