"""When the steps of a measured run began. A resume loads the workflow's file under a second name, not this one."""

from __future__ import annotations

STARTED: list[float] = []
"""`time.perf_counter()` at the start of each step, in order."""
