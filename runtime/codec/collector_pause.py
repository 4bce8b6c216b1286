"""Pause Python's garbage collector while a value is encoded or decoded.

Each container that is made counts for the collector, which then looks at all that were made before, again and again.
It finds nothing, since all of them are in use. For a value of many objects that takes half of the time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector in this block, for all threads. What the block makes is collected later.

    The end of the block enables the collector, also if another thread has disabled it in the meantime.
    """
    global _paused
    was_enabled = gc.isenabled()
    try:
        if was_enabled:
            _paused = True
            gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()
            _paused = False


def _enable_in_child() -> None:
    """A child that another thread forks during a pause has no thread that would end the pause."""
    global _paused
    if _paused:
        gc.enable()
        _paused = False


os.register_at_fork(after_in_child=_enable_in_child)
