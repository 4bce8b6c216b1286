"""Live worlds of a run, and the life of the snapshots behind them.

`world_pool.py` creates and closes worlds, `recovery.py` recomputes lost snapshots, and `garbage_collection.py`
deletes snapshots that nothing needs. `fork_engine/gc_pins.py` protects snapshots that no journal row names yet, and
`pinned_seal.py` those of seals that were cancelled."""
