"""Named points at which a test can kill the process. They follow each step that changes the visible state of a store.

A test sets `at`, which is called with the name of each point after the step that the name describes. `POINTS` lists
the points of this package. The runtime has others after its commits, mounts and sends.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "written",  # the new object is complete under tmp/
    "noted",  # it is noted as not flushed yet
    "placed",  # it has its final name
    "snapshot",  # the snapshot's record has its final name
    "flushed",  # everything is on disk, the notes still exist
    "cleared",  # the notes are removed: the operation is complete
    "indexed",  # the next import of the same folder knows what this one read
    "written out",  # a path of a checkout, or the whole new folder, has its final name in the user's folder
    "forgotten",  # deletion: the records of the snapshots are gone, their layers still exist
    "removed",  # deletion: one layer, blob or image is removed
    "named",  # push, pull: the bucket names the snapshot for this home
    "uploaded",  # push: an object with layers or blobs is in the bucket
    "recorded",  # push: the snapshot's record is in the bucket
    "fetched",  # pull: a layer, image or blob of the snapshot is in the local store
    "unnamed",  # remote collection: a name of this home is deleted
    "condemned",  # remote collection: an object is marked for deletion
    "swept",  # remote collection: a marked object is deleted, its mark still exists
)

at: Callable[[str], None] | None = None


def point(name: str) -> None:
    if at is not None:
        at(name)
