"""The database: runs, journal rows, checkpoints and model calls. The only package that imports SQLAlchemy.

tables.py     the tables as they are now
migrate.py    how a database gets there, version by version
rows.py       records to rows and back
failures.py   the database's errors in our words
tallies.py    how much was done in a run
store.py      RunStore
"""

from ramify.runtime.store.store import RunStore
from ramify.runtime.store.tallies import Tally

__all__ = ["RunStore", "Tally"]
