"""Spread the replicas of key stages over hosts (QUART §6.2).

The paper moves a matrix of probabilities by gradient descent, without a projection and without capacities, and its
optimum is the target itself. Replicas are whole and hosts are finite, so replicas are assigned one by one: each goes
to the host that brings the histogram of key stages nearest (in Kullback-Leibler divergence) to that of free capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log

from ramify.serving.errors import NoRoom


def divergence(placed: Mapping[str, int], free: Mapping[str, int]) -> float:
    """KL(histogram of replicas ‖ histogram of free capacity); infinite for a replica where nothing was free."""
    total, room = sum(placed.values()), sum(free.values())
    out = 0.0
    for host, count in placed.items():
        if count and not free.get(host):
            return inf
        if count:
            out += count / total * log(count / total * room / free[host])
    return out


def spread(replicas: int, free: Mapping[str, int]) -> dict[str, int]:
    """So many replicas over hosts with so much room each. Raises NoRoom if the hosts together have too little."""
    room = sum(free.values())
    if replicas > room:
        raise NoRoom(f"{replicas} replicas do not fit {room} free places on {len(free)} hosts: lower the pool's most")
    placed = dict.fromkeys(free, 0)
    for _ in range(replicas):
        open_ = [host for host in free if placed[host] < free[host]]
        best = min(open_, key=lambda host: (divergence({**placed, host: placed[host] + 1}, free), host))
        placed[best] += 1
    return placed
