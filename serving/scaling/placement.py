"""On which server a pool's next replica starts (QUART §6.2, equations 8 to 10, corrected).

Key stages are spread, so that each of their servers keeps room for more replicas, which start there from the weights
that the server's memory has. Other stages are packed, so that room stays in one piece.

The paper minimises KL(P ‖ Q) by gradient descent, where Q is uniform over the servers. What is corrected:

- Q knows no capacity, so that a small server gets as many replicas as a large one. Here Q is each server's share of
  the room: its replicas of key stages and its free places. A server without a free place is never chosen.
- The minimum of equation 8 is P = Q, which needs no descent, and has fractions of replicas. Equation 10 does not
  project either: from a uniform P each step takes α from each server's share, and the shares no longer sum to 1.
  Here whole replicas go one by one to where each brings the divergence lowest. N·KL is Σ n·log(n/q) - N·log N, a sum
  of convex functions of the servers' counts, so that this greedy rule finds the minimum over whole replicas.
- Replicas that run are not moved: P starts from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, log
from typing import Protocol, runtime_checkable

from ramify.serving.errors import BadPool, NoRoom


@dataclass(frozen=True, slots=True)
class Server:
    """A server, as the next replica of one pool finds it. Raises BadPool."""

    free: int  # replicas that it has room for
    key: int = 0  # replicas of key stages on it
    loaded: bool = False  # its memory has the pool's weights

    def __post_init__(self) -> None:
        if self.free < 0 or self.key < 0:
            raise BadPool(f"a server has at least 0 free places and replicas, got {self.free} and {self.key}")


@runtime_checkable
class Placer(Protocol):
    """A controller that also says where replicas start."""

    def place(self, pool: str, servers: Sequence[Server], now: float) -> int:
        """The index of the server for one more replica. Raises NoRoom."""


def divergence(held: Sequence[int], room: Sequence[int]) -> float:
    """KL(P ‖ Q) of equation 8: P are the shares of the replicas `held` by server, Q those of `room`."""
    replicas, places = sum(held), sum(room)
    if any(n and not q for n, q in zip(held, room, strict=True)):
        return inf
    return fsum(n / replicas * log(n * places / (q * replicas)) for n, q in zip(held, room, strict=True) if n)


def spread(servers: Sequence[Server]) -> int:
    """The server on which one more replica of a key stage brings the divergence lowest; the first of equal ones.

    Servers whose memory has the weights come before all others (figure 5). Raises NoRoom.
    """
    open_ = _open(servers)
    held, room = [one.key for one in servers], [one.key + one.free for one in servers]

    def after(index: int) -> float:
        return divergence([n + (j == index) for j, n in enumerate(held)], room)

    return min([j for j in open_ if servers[j].loaded] or open_, key=after)


def dense(servers: Sequence[Server]) -> int:
    """The server with the fewest free places; the first of equal ones. Raises NoRoom."""
    return min(_open(servers), key=lambda j: servers[j].free)


def _open(servers: Sequence[Server]) -> list[int]:
    found = [j for j, one in enumerate(servers) if one.free]
    if not found:
        raise NoRoom(f"none of {len(servers)} servers has a free place: end a replica first, or add a server")
    return found
