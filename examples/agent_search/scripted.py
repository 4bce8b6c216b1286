"""A model for mini-swe-agent that needs no server: it looks, tries plausible edits, and submits.

Like a real model at a temperature, it answers the same question in different ways, and is often wrong.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

from minisweagent.models.test_models import DeterministicModel, make_output

EDITS = (
    ("sum(prices[1:])", "sum(prices)"),
    ("sum(prices[1:])", "sum(prices[:-1])"),
    ("sum(prices[1:])", "len(prices)"),
    ("price - percent", "price - price * percent \\/ 100"),
    ("price - percent", "price * percent \\/ 100"),
    ("price - percent", "price - percent \\/ 100"),
    ("price - paid", "paid - price"),
    ("price - paid", "abs(price)"),
    ("price - paid", "paid + price"),
)
CHECK = "python3 -B checks.py; cat shop.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat shop.py"


class ScriptedModel(DeterministicModel):  # type: ignore[misc]
    """What it answers depends on the messages, on the seed, and on how often it was asked with these messages."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(outputs=[], cost_per_call=0.0)
        self._seed = seed
        self._asked: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()

    def query(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        done = tuple(action["command"] for one in messages for action in one.get("extra", {}).get("actions", []))
        with self._lock:
            self._asked[done] += 1
            chance = random.Random(f"{self._seed} {self._asked[done]} {done}")
        if not done:
            return said("First I look at the code and at what fails.", CHECK)
        seen = messages[-1]["content"]
        possible = [(old, new) for old, new in EDITS if old in seen]
        if not possible or " 0 failed" in seen:
            return said("There is nothing left that I would change.", SUBMIT)
        old, new = chance.choice(possible)
        pattern = old.replace("[", "\\[").replace("]", "\\]")
        return said(f"I think that `{old}` is wrong.", f"sed -i 's/{pattern}/{new}/' shop.py; {CHECK}")


def said(thought: str, command: str) -> dict[str, Any]:
    return dict(make_output(thought, [{"command": command}], cost=0.0))
