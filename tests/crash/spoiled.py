"""Kills at named crash points (`benchmarks/crash.py`) and at random moments, and runtimes that lose or repeat
something on purpose, killed and resumed: what the harness finds. All in one process, because most of its time is what
it does once, to be warm. Prints one JSON object: that of `benchmarks/crash.py`, with `found` and `trials`.

Usage: spoiled.py TRIALS POINTS
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))
import harness
from lives import Scenario
from random_kills import killed_at_random

from benchmarks import crash
from ramify.runtime.effects.fence import Fence, KnownEffect
from ramify.runtime.journal.journal import Journal
from ramify.runtime.langgraph.checkpointer import Saver
from ramify.runtime.records import EffectStatus
from ramify.runtime.worlds.garbage_collection import LiveStates


async def _again(fence: Fence, before: object) -> None:
    """Sends effects in doubt again."""


async def _as_done(fence: Fence, before: object) -> KnownEffect:
    """Treats effects in doubt as done."""
    return KnownEffect('"receipt"', "nobody knows")


def _unsettled(fence: Fence, result_json: str, note: str = "") -> Any:
    """Does not record the result in the ledger."""
    return replace(fence._changed(EffectStatus.DONE, result_json=result_json), status=EffectStatus.IN_DOUBT)


def _not_served(journal: Journal, key: str) -> None:
    """Repeats answered model calls."""


def _nothing(histories: object) -> LiveStates:
    """Makes a collection find no live snapshot."""
    return LiveStates()


_put = Saver.aput


async def _put_otherwise(saver: Saver, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
    """Stores incomplete checkpoints of the thread."""
    return await _put(saver, config, checkpoint, {**metadata, "step": 0}, versions)


SPOILED: dict[str, tuple[str, Callable[..., Any], Scenario, str, int]] = {
    "duplicated": ("ramify.runtime.effects.fence.Fence._resolve", _again, Scenario.WITHOUT_KEYS, "sent", 1),
    "lost": ("ramify.runtime.effects.fence.Fence._resolve", _as_done, Scenario.WITHOUT_KEYS, "about to send", 1),
    "effects": ("ramify.runtime.effects.fence.Fence.done", _unsettled, Scenario.WITH_KEYS, "about to send", 2),
    "rows": (
        "ramify.runtime.journal.journal.Journal.served_llm",
        _not_served,
        Scenario.WITH_KEYS,
        "answer durable",
        1,
    ),
    "problems": ("ramify.runtime.worlds.garbage_collection.living", _nothing, Scenario.WITH_KEYS, "about to send", 2),
    "history": (
        "ramify.runtime.langgraph.checkpointer.Saver.aput",
        _put_otherwise,
        Scenario.GRAPH,
        "about to ask",
        1,
    ),
}
"""What the harness is to see; what is put in which place; where it is killed."""


def main() -> None:
    trials, points = int(sys.argv[1]), sys.argv[2]

    def also(folder: Path, known: harness.Wholes) -> dict[str, Any]:
        return {"found": found_in(folder, known), "trials": [*killed_at_random(folder, known, trials)]}

    sys.exit(crash.main(["--points", points, "--json"], also))


def found_in(folder: Path, known: harness.Wholes) -> dict[str, list[str]]:
    """What the harness sees of each spoiled runtime."""
    found = {}
    for what, (place, by, scenario, point, nth) in SPOILED.items():
        trial = harness.Trial(scenario, "sqlite", point, nth)
        whole = known[scenario, "sqlite"].left
        assert whole is not None
        with mock.patch(place, by):
            harness.judge(harness.run(trial, folder / what, None), whole)
        seen = {one.partition(":")[0] for one in trial.wrong}
        seen |= {name for name in ("lost", "duplicated") if getattr(trial, name)}
        found[what] = sorted(seen) if trial.killed_at else ["not killed"]
    return found


if __name__ == "__main__":
    main()
