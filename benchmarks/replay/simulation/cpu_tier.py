"""`Swaps`: contexts that a simulated engine keeps in host memory, beyond its KV cache."""

from __future__ import annotations

from typing import Any


class Swaps:
    """Contexts in a CPU tier. The tokens of a prompt that are there are copied back, not computed."""

    def __init__(self, copy_ms: float) -> None:
        """`copy_ms`: milliseconds to copy a token's KV from the tier. Copies to it cost nothing."""
        self.copy_ms = copy_ms
        self.held: dict[str, int] = {}  # tokens, by program
        self.copied = 0  # tokens, ever

    def taken(self, scheduler: Any, output: Any) -> int:
        """Return how many prompt tokens of a step are copied."""
        copied = 0
        for name, scheduled in output.num_scheduled_tokens.items():
            held = self.held.get(name.partition(".")[0], 0)
            end = scheduler.requests[name].num_computed_tokens
            copied += max(0, min(end, held) - (end - scheduled))
        self.copied += copied
        return copied
