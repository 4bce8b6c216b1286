"""A folder to measure in, which is removed however the benchmark ends."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramify.sandboxes.host.scratch import remove_tree


@contextmanager
def scratch(within: Path | None) -> Iterator[Path]:
    """Yield a folder that is removed at the end, even if Ctrl-C or SIGTERM interrupts a partial removal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="ramify-bench-", dir=within))
    try:
        yield folder
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        remove_tree(folder)
