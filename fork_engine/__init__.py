"""Layers, snapshots, three-way merge and the content-addressed store. Knows nothing of workflows or models.

Start at `store.py`: `SnapshotStore` imports a folder, seals what a world changed as a new `Snapshot`, merges two
snapshots, writes one out, and deletes those that nobody names. `types.py` defines the data, `errors.py` the errors.

- `seal.py`, `importer.py` and `merge/` make layers; `layers.py` and `snapshots.py` keep them on disk; `snapshots.py`
  computes ids (for restoring) and content keys (for reuse)
- `manifest.py` says what one layer holds, `view.py` what a stack of layers looks like
- `checkout.py` writes a snapshot into a user's folder; `fsck/` checks and repairs a store
- `filesystem/` works on files and folders alone, and imports only `types` and `errors`
- `crash_points.py` and `close_on_fork.py` serve the packages above, too

docs/snapshot-format.md defines what lies on disk.
"""
