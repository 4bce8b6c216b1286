"""Concord's verdicts on recorded traces have not changed."""

from __future__ import annotations

import json

import pytest

from tests.serving.policy.recorded_verdicts import EVERY, FILE, SCENES, record


@pytest.mark.parametrize("name", SCENES)
def test_verdicts_match_the_recording(name: str) -> None:
    known = json.loads(FILE.read_text())[name]
    seen = record(SCENES[name])
    pairs = zip(known["digests"], seen.digests, strict=True)
    first = next((at for at, (before, now) in enumerate(pairs) if before != now), None)
    assert first is None, (
        f"from decision {first * EVERY + 1} to {first * EVERY + EVERY} a verdict is another than was recorded: if it "
        f"was meant to be, python -m tests.serving.policy.recorded_verdicts writes {FILE.name} anew"
    )


def test_the_recording_has_every_kind_of_move() -> None:
    moves = [one["moves"] for one in json.loads(FILE.read_text()).values()]
    for name in ("admit", "preempt", "pause", "resume", "drop", "budget"):
        assert sum(one[name] for one in moves) > 5, name
