"""Check a store against the digests that name everything in it, and repair what other copies in the store allow.

`repair.fsck` is what `SnapshotStore.fsck` calls. `check.py` finds damage, and wrong modes and owners.
"""
