"""LangGraph's checkpoints, store and cache on SQLite or PostgreSQL; usable without the rest of Ramify.

saver.py              Saver, the checkpointer: start here
checkpoint_writes.py  how checkpoints and writes become rows
checkpoint_reader.py  how rows become checkpoints
group_commit.py       one commit for everything that waits
values.py             values by content: each as its difference to another, into and out of the database
serializers.py        which types are built of stored bytes, and reading and moving values without types
maintenance.py        copy, prune and delete threads
thread_copies.py      copy threads between checkpointers, LangGraph's own savers among them
tables.py             the tables
statements.py         the statements of the hot path, and rows that wait for the end of a transaction
database.py           from an address to a database; what the three classes have in common
item_store.py         Store, LangGraph's long-term store
ttl_sweeper.py        a thread that deletes the store's expired items
node_cache.py         Cache, LangGraph's cache of node results
compat.py             private names of langgraph-checkpoint
"""

from ramify.runtime.langgraph.checkpointer.item_store import Store
from ramify.runtime.langgraph.checkpointer.node_cache import Cache
from ramify.runtime.langgraph.checkpointer.saver import Saver

__all__ = ["Cache", "Saver", "Store"]
