"""The database: runs, journal rows, checkpoints and model calls. The only package that imports SQLAlchemy.

tables.py     the tables as they are now
migrate.py    how a database gets there, version by version
rows.py       records to rows and back
failures.py   the database's errors in our words
store.py      RunStore
"""

from ramify.runtime.store.store import RunStore

__all__ = ["RunStore"]
