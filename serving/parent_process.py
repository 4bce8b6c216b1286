"""Ends a process with the one that started it, however that ends.

Linux has a signal for this (PR_SET_PDEATHSIG). But it comes when the *thread* that started the process ends, while
its process may go on for long. So a thread looks who the parent is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

_LOOK_S = 1.0


def end_with_parent(parent: int, end: Callable[[], None], look_s: float = _LOOK_S) -> None:
    """Call `end` in a thread when the process `parent`, which started this one, has ended. Exits at once if it has
    ended already."""
    if os.getppid() != parent:
        sys.exit("the parent is gone")

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(look_s)
        end()

    threading.Thread(target=watch, name="ramify-end-with-parent", daemon=True).start()
