"""Pause Python's garbage collector while a value is encoded or decoded.

Each container that is made counts for the collector, which then looks at all that were made before, again and again.
It finds nothing, since all of them are in use. For a value of many objects that takes half of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector in this block, for all threads. What the block makes is collected later."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
