"""Files and folders on disk: walk, scan, hash, copy and create them. Knows nothing of stores and snapshots.

`openat.py` never follows a link out of a tree, and all else here goes through it. `scan.py` reads a folder into
entries, `write.py` creates a tree from entries, `untar.py` unpacks a root file system.
"""
