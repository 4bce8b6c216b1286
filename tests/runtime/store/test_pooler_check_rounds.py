"""Two connections behind a pool of any size and any order of lending are found to share sessions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ramify.runtime.store.pooler_check import _share

ORDERS: dict[str, Callable[[list[int]], int]] = {
    "idle longest": lambda idle: 0,
    "idle shortest": lambda idle: len(idle) - 1,
    "any": lambda idle: random.Random(len(idle)).randrange(len(idle)),
}


class Pooled:
    """A connection to a pool that lends a session for one transaction."""

    def __init__(self, idle: list[int], order: Callable[[list[int]], int]) -> None:
        self._idle, self._order, self._pid = idle, order, 0

    @contextmanager
    def begin(self) -> Iterator[None]:
        self._pid = self._idle.pop(self._order(self._idle))
        yield
        self._idle.append(self._pid)

    def exec_driver_sql(self, text: str) -> Pooled:
        return self

    def scalar_one(self) -> int:
        return self._pid


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_shared_session_is_seen(size: int, order: str) -> None:
    idle = list(range(size))
    one, other = (Pooled(idle, ORDERS[order]) for _ in range(2))
    asked: Any = one, other
    assert _share(*asked)


def test_connections_with_a_session_each_share_none() -> None:
    asked: Any = tuple(Pooled([pid], ORDERS["any"]) for pid in (1, 2))
    assert not _share(*asked)
