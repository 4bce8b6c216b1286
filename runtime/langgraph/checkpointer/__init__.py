"""LangGraph's checkpoints, store and cache on SQLite or PostgreSQL; usable without the rest of Ramify.

saver.py              Saver, the checkpointer: start here
checkpoint_writes.py  how checkpoints and writes become rows
checkpoint_reader.py  how rows become checkpoints
group_commit.py       one commit for everything that waits
values.py             values by content, into and out of the database
delta_encoding.py     how a value is stored as its difference to another
serializers.py        which types are built of stored bytes, and reading without types
maintenance.py        copy, prune and delete threads
deletion_epoch.py     notice deletions by other processes
channel_versions.py   how a channel's values are numbered
thread_copies.py      copy threads between checkpointers
thread_databases.py   open LangGraph's databases and ours to copy threads
portable_serializer.py move values without building their types
tables.py             the tables
statements.py         the statements of the hot path, and rows that wait for the end of a transaction
database.py           from an address to a database; what the three classes have in common
item_store.py         Store, LangGraph's long-term store
ttl_sweeper.py        delete expired items of a store
node_cache.py         Cache, LangGraph's cache of node results
filters.py            the values that a filter's keys name
ready.py              results that may be awaited
compat.py             private names of langgraph-checkpoint
"""

from ramify.runtime.langgraph.checkpointer.item_store import Store
from ramify.runtime.langgraph.checkpointer.node_cache import Cache
from ramify.runtime.langgraph.checkpointer.saver import Saver

__all__ = ["Cache", "Saver", "Store"]
