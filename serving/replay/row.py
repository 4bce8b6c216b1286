"""A row of the issue's table."""

from __future__ import annotations

from typing import TypedDict

from ramify.serving.replay.figures import Pair


class Row(TypedDict):
    """As every benchmark's `--json` has it. `ratio` is of what the two attain, whatever `ours` makes of that (a gap,
    a difference); None where nothing is held against a peer."""

    name: str
    ours: float | None
    unit: str
    peer: str
    peer_value: float | None
    ratio: float | None
    target: str
    met: bool | None
    note: str


def against(name: str, contender: str, peer: str, pair: Pair, least: float) -> Row:
    """How many times as much as a peer. Of a peer that has nothing there is no multiple: any at all is above it."""
    if pair.ratio is not None:
        return at_least(name, pair.ratio, "x", peer, pair, f">= {least:g} x", least, pair.spread)
    note = f"{contender} {pair.ours:.3f}; {peer} has none, so that no multiple of it can be said"
    return judged(name, None, "x", peer, pair.theirs, f">= {least:g} x", pair.ours > 0, note)


def at_least(
    name: str,
    ours: float | None,
    unit: str,
    peer: str,
    pair: Pair | None,
    target: str,
    least: float | None,
    note: str,
) -> Row:
    met = None if ours is None or least is None else ours >= least
    value, ratio = (None, None) if pair is None else (pair.theirs, pair.ratio)
    return judged(name, ours, unit, peer, value, target, met, note, ratio)


def judged(
    name: str,
    ours: float | None,
    unit: str,
    peer: str,
    value: float | None,
    target: str,
    met: bool | None,
    note: str,
    ratio: float | None = None,
) -> Row:
    return Row(
        name=name, ours=ours, unit=unit, peer=peer, peer_value=value, ratio=ratio, target=target, met=met, note=note
    )  # fmt: skip
