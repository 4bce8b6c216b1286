"""The newest checkpoint is the one with the greatest id: also where the clock went back.

LangGraph's ids hold the time, and grow within a process whatever the clock does. Of two processes, or machines, the
one whose clock is behind would make checkpoints that nobody takes for the newest: a thread that went on would be
found where it was before.
"""

from __future__ import annotations

from langgraph.checkpoint.base import id as ids


def advance_ids_past(newest: str) -> None:
    """Have this process's ids come after one that stands in the database. One that LangGraph did not make says
    nothing of the time."""
    try:
        there = ids.UUID(newest)
    except ValueError:
        return
    if there.version == 6 and str(ids.uuid6()) < str(there):
        ids._last_v6_timestamp = there.time  # type: ignore[assignment]  # inferred from its first value
