"""Three-way merge of two snapshots.

`apply.merge_snapshots` is what `SnapshotStore.merge` calls. `files.py` merges the paths, and texts by line;
`state.py` variables, directory, processes, and what two shells know. `conflicts.py` answers conflicts.
"""
