"""A refusal by vLLM's scheduler as one line of text, in a field that vLLM passes on to the client.

The gateway turns the line into the 422 that its own refusals are. Standard library only.
"""

from __future__ import annotations

import re

CODE = "deadline_infeasible"
_LINE = re.compile(rf"^{CODE}: (?P<reason>.*?)(?: \[earliest_feasible_s=(?P<least>[0-9.]+)\])?\Z", re.DOTALL)


def refusal_to_line(reason: str, earliest_feasible_s: float | None) -> str:
    return f"{CODE}: {reason}" + (
        "" if earliest_feasible_s is None else f" [earliest_feasible_s={earliest_feasible_s}]"
    )


def refusal_from_line(line: object) -> tuple[str, float | None] | None:
    """The reason and the least feasible deadline in seconds; None for any other text."""
    found = _LINE.match(line) if isinstance(line, str) else None
    if found is None:
        return None
    least = found["least"]
    return found["reason"], None if least is None else float(least)
