"""Named points at which a test can kill the process: beside each step that changes what a store shows.

`at` is a test's to set. A point is passed once what its name says has been done. `POINTS` are this package's; the
runtime passes others beside its commits, its mounts and what it sends.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "written",  # what is being made is whole under tmp/
    "noted",  # and noted as not yet flushed
    "placed",  # and has its final name
    "snapshot",  # the snapshot's file has its final name
    "flushed",  # all of it is on disk, its notes still there
    "cleared",  # its notes are gone: the operation is over
    "indexed",  # what an import read of the user's folder is known to the next one
    "written out",  # a path of a checkout, or the whole new folder, has its name in the user's folder
    "forgotten",  # a deletion: the snapshots' files are gone, their layers are still there
    "removed",  # a deletion: one layer, blob or image has been taken out
)

at: Callable[[str], None] | None = None


def point(name: str) -> None:
    if at is not None:
        at(name)
