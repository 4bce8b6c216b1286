"""LangGraph's checkpoints, store and cache on SQLite or PostgreSQL; usable without the rest of Ramify.

saver.py      Saver, the checkpointer
packing.py    how a value is written against what is there already
values.py     values by content, in and out of the database
writer.py     commits in groups
upkeep.py     copying, pruning and deleting threads
strict.py     which types are built of what was stored
inert.py      values without their types, for what only looks
shared.py     what these three have in common
tables.py     the tables
statements.py what a superstep executes, and what a checkpoint is read by
reading.py    checkpoints back out of the database
engines.py    from an address to a database
items.py      Store, LangGraph's long-term store
caching.py    Cache, LangGraph's cache of node results
"""

from ramify.runtime.langgraph.checkpointer.item_store import Store
from ramify.runtime.langgraph.checkpointer.node_cache import Cache
from ramify.runtime.langgraph.checkpointer.saver import Saver

__all__ = ["Cache", "Saver", "Store"]
