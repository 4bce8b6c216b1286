"""`LatestOfEach`: what a gateway remembers of its clients, of which none can crowd out what it knows of another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class LatestOfEach(Generic[T]):
    """Values by client and name. Beyond `most` in all, the client that has the most loses its oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: OrderedDict[tuple[str, object], T] = OrderedDict()
        self._names: dict[str, OrderedDict[object, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def put(self, client: str, name: object, value: T) -> None:
        """Remember a value as the latest."""
        self._all[client, name] = value
        self._all.move_to_end((client, name))
        names = self._names.setdefault(client, OrderedDict())
        names[name] = None
        names.move_to_end(name)
        while len(self._all) > self._most:
            largest = max(self._names, key=lambda one: len(self._names[one]))
            oldest, _ = self._names[largest].popitem(last=False)
            del self._all[largest, oldest]

    def get(self, client: str, name: object) -> T | None:
        return self._all.get((client, name))

    def of(self, client: str) -> list[T]:
        """The client's values, the latest last."""
        return [self._all[client, name] for name in self._names.get(client, ())]

    def latest_first(self) -> Iterator[T]:
        """The values of all clients."""
        return reversed(self._all.values())
