"""Three-way merge of two snapshots.

`apply.merge_snapshots` is what `SnapshotStore.merge` calls. `files.py` merges the paths and `lines.py` texts by line,
`state.py` variables, directory and processes, and `shells.py` what two shells know. `conflicts.py` answers conflicts.
"""
