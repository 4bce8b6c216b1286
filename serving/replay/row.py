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
    """How many times as much as a peer. Of a peer that has next to nothing no multiple is said: it is met by who has
    at least that many times the little, and anything."""
    if pair.ratio is not None:
        return at_least(name, pair.ratio, "x", peer, pair, least, pair.spread)
    note = f"{contender} {pair.ours:.3f}; {peer} has less than half a point, of which no multiple is said"
    met = pair.ours > 0 and pair.ours >= least * pair.theirs
    return judged(name, None, "x", peer, pair.theirs, _wanted(">=", least, "x"), met, note)


def at_least(
    name: str, ours: float | None, unit: str, peer: str, pair: Pair | None, least: float | None, note: str
) -> Row:
    """`least`: None where the figure is reported, and has no target."""
    met = None if ours is None or least is None else ours >= least
    value, ratio = (None, None) if pair is None else (pair.theirs, pair.ratio)
    target = "reported" if least is None else _wanted(">=", least, unit)
    return judged(name, ours, unit, peer, value, target, met, note, ratio)


def at_most(name: str, ours: float, unit: str, peer: str, pair: Pair, most: float, note: str) -> Row:
    return judged(name, ours, unit, peer, pair.theirs, _wanted("<=", most, unit), ours <= most, note, pair.ratio)


def _wanted(sign: str, limit: float, unit: str) -> str:
    return f"{sign} {limit:g}{' x' if unit == 'x' else ''}"


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
