"""Fit wishes for replicas into a capacity that all pools share."""

from __future__ import annotations

from collections.abc import Mapping

from ramify.serving.errors import NoRoom


def within_budget(wanted: Mapping[str, int], least: Mapping[str, int], budget: int) -> dict[str, int]:
    """What each pool gets of `budget` replicas: its least, and of the rest a share of what it wants beyond that.

    Shares are proportional, and whole by largest remainder. Raises NoRoom if the budget is below all the leasts.
    """
    floor = sum(least.values())
    if floor > budget:
        raise NoRoom(f"the pools need at least {floor} replicas, and there is room for {budget}: lower their least")
    beyond = {name: max(0, count - least[name]) for name, count in wanted.items()}
    room, asked = budget - floor, sum(beyond.values())
    if asked <= room:
        return {name: least[name] + more for name, more in beyond.items()}
    exact = {name: more * room / asked for name, more in beyond.items()}
    given = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (given[name] - exact[name], name))
    for name in by_remainder[: room - sum(given.values())]:
        given[name] += 1
    return {name: least[name] + more for name, more in given.items()}
