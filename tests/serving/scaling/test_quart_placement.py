"""Where replicas start: QUART's spread placement, with each of its corrections, under capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import BadPool, NoRoom
from ramify.serving.scaling.pools import PoolLimits, PoolLoad
from ramify.serving.scaling.quart import Placer, Quart, Server, dense, divergence, spread

SERVERS = st.lists(st.builds(Server, free=st.integers(0, 6), key=st.integers(0, 3)), min_size=1, max_size=5)


def first_fit(servers: Sequence[Server]) -> int:
    return next(j for j, one in enumerate(servers) if one.free)


def placed(replicas: int, servers: Sequence[Server], rule: Callable[[Sequence[Server]], int]) -> list[int]:
    """The replicas of key stages by server, after so many more."""
    now = list(servers)
    for _ in range(replicas):
        where = rule(now)
        now[where] = Server(now[where].free - 1, now[where].key + 1, now[where].loaded)
    return [one.key for one in now]


@given(SERVERS, st.data())
def test_never_above_capacity_and_no_worse_than_first_fit(servers: list[Server], data: st.DataObject) -> None:
    replicas = data.draw(st.integers(0, sum(one.free for one in servers)))
    room = [one.key + one.free for one in servers]
    held = placed(replicas, servers, spread)
    assert sum(held) == sum(one.key for one in servers) + replicas, "whole replicas, each of them once"
    assert all(one.key <= n <= q for one, n, q in zip(servers, held, room, strict=True)), "none is moved"
    assert divergence(held, room) <= divergence(placed(replicas, servers, first_fit), room) + 1e-12
    assert held == placed(replicas, servers, spread)


@given(st.lists(st.builds(Server, free=st.integers(0, 4), key=st.integers(0, 2)), min_size=1, max_size=3), st.data())
def test_one_by_one_finds_the_minimum_over_whole_replicas(servers: list[Server], data: st.DataObject) -> None:
    replicas = data.draw(st.integers(0, sum(one.free for one in servers)))
    room, total = [one.key + one.free for one in servers], sum(one.key for one in servers) + replicas
    every = product(*(range(one.key, q + 1) for one, q in zip(servers, room, strict=True)))
    best = min(divergence(held, room) for held in every if sum(held) == total)
    assert divergence(placed(replicas, servers, spread), room) == pytest.approx(best, abs=1e-12)


def test_the_divergence_is_that_of_equation_8() -> None:
    assert divergence([2, 2], [5, 5]) == 0.0
    assert divergence([3, 1], [4, 4]) == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5))
    assert divergence([0, 0], [4, 4]) == 0.0


def test_a_large_server_gets_more_than_a_small_one() -> None:
    """With Q uniform, as printed, each of the three would get three of nine, and the last has room for one."""
    assert placed(9, [Server(12), Server(5), Server(1)], spread) == [6, 2, 1]


def test_replicas_are_whole_where_the_minimum_is_not() -> None:
    """P = Q, the minimum of equation 8, puts 4/3 of a replica on each."""
    assert placed(4, [Server(4), Server(4), Server(4)], spread) == [2, 1, 1]


def test_replicas_that_run_are_counted() -> None:
    assert placed(2, [Server(1, key=3), Server(4), Server(4)], spread) == [3, 1, 1]


def test_weights_in_memory_come_first_while_there_is_room() -> None:
    assert placed(3, [Server(8), Server(2, loaded=True), Server(8)], spread) == [1, 2, 0]


@pytest.mark.parametrize("rule", [spread, dense])
def test_full_servers_are_refused(rule: Callable[[Sequence[Server]], int]) -> None:
    with pytest.raises(NoRoom, match="2 servers"):
        rule([Server(0, key=4), Server(0)])
    with pytest.raises(BadPool, match="-1"):
        Server(-1)


def test_quart_spreads_its_key_stages_and_packs_the_others() -> None:
    quart, limits, servers = Quart(12), PoolLimits(1, 10), [Server(8), Server(2), Server(4)]
    assert isinstance(quart, Placer)
    quart.decide(
        [PoolLoad("calm", 0.2, 1.0, 1, limits=limits), PoolLoad("busy", 2.5, 1.0, 2, limits=limits)], (), 0.0
    )
    assert (quart.place("busy", servers, 1.0), quart.place("calm", servers, 1.0)) == (0, 1)
