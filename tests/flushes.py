"""What tests do instead of flushing to the disk: nothing. No test cuts the power, and a killed process leaves what
the kernel has. A flush waits for the disk, and that of a file system for all that the other tests wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


def left_out() -> Iterator[tuple[Any, str, Any]]:
    """Yield what to set for that: an object, its attribute, the value."""
    from ramify.fork_engine import checkout, store_folder
    from ramify.fork_engine.remote import bucket
    from ramify.runtime.store import engines

    yield engines, "PRAGMAS", (*engines.PRAGMAS, "PRAGMA synchronous = OFF")
    yield os, "fsync", _nothing
    for module in (bucket, checkout, store_folder):
        yield module, "sync_file_system", _nothing


def _nothing(fd: object) -> None:
    """In place of a flush."""
