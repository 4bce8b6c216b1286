"""`PowerOfK`: choose a replica for each request by power of K (thesis §4.3).

For each request, K of the M replicas are sampled. A dummy copy of the request joins the queue of each, with a
priority of that replica's own: a faster replica, or one that holds its prefix, gives the same goodput for less
time. The best dummies are placed first. Once a request has its place, its other dummies are removed. With K = M all
replicas are covered. Requests of one fork group, and then of one workflow, go where their prefix already is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from ramify.serving.policy.cost_model import LengthPrior, decode_gpu_s, prefill_s, remaining
from ramify.serving.policy.types import Capacity, RequestId, RequestView


@dataclass(frozen=True, slots=True)
class Replica:
    id: int
    capacity: Capacity
    alive: bool = True
    prefixes: Mapping[str, int] = field(default_factory=dict)  # tokens cached, by fork group or compound id


@dataclass(frozen=True, slots=True)
class Dummy:
    """A request in the queue of one replica."""

    request: RequestView
    replica: int
    priority: float


class PowerOfK:
    """Places requests on replicas. Seeded: equal calls in equal order give equal places."""

    def __init__(self, k: int | None = None, seed: int = 0) -> None:
        self._k = k
        self._random = Random(seed)
        self._prior = LengthPrior()

    def dummies(self, request: RequestView, replicas: Sequence[Replica]) -> list[Dummy]:
        """Return a request's copies, one for each of K living replicas. Replicas that hold its prefix come first."""
        living = [replica for replica in replicas if replica.alive]
        k = len(living) if self._k is None else min(self._k, len(living))
        holders = [replica for replica in living if _prefix(request, replica)]
        others = [replica for replica in living if not _prefix(request, replica)]
        sampled = holders[:k] + self._random.sample(others, max(0, min(k - len(holders), len(others))))
        return [Dummy(request, replica.id, self._priority(request, replica)) for replica in sampled]

    def place(self, requests: Sequence[RequestView], replicas: Sequence[Replica]) -> dict[RequestId, int]:
        """Return the replica of each placed request, for as many as there are free slots: the best dummy of all
        first.
        """
        by_id = {replica.id: replica for replica in replicas}
        free = {replica.id: replica.capacity.free for replica in replicas}
        queue = [dummy for request in requests for dummy in self.dummies(request, replicas)]
        queue.sort(key=lambda dummy: (-dummy.priority, dummy.request.id, dummy.replica))
        placed: dict[RequestId, int] = {}
        homes: dict[str, int] = {}
        for dummy in queue:
            request = dummy.request
            if request.id in placed:
                continue  # it has its place, so this dummy is removed
            home = homes.get(request.group.id) if request.group else None
            target = home if home is not None and free[home] > 0 else dummy.replica
            if free[target] > 0:
                placed[request.id] = target
                free[target] -= 1
                if request.group is not None:
                    homes.setdefault(request.group.id, target)
        assert all(by_id[target].alive for target in placed.values())
        return placed

    def _priority(self, request: RequestView, replica: Replica) -> float:
        """Return the goodput for each second of this replica's time (equation 4.1). A loaded replica gives less."""
        step, capacity = replica.capacity.step, replica.capacity
        cached = replace(request, cached_tokens=max(request.cached_tokens, _prefix(request, replica)))
        out = remaining(request, self._prior, 0.5)
        cost = prefill_s(step, cached.to_prefill) + decode_gpu_s(step, capacity.slots, request.prompt_tokens, out)
        load = capacity.running / max(1, capacity.slots)
        return request.weight / (cost * (1 + load))


def _prefix(request: RequestView, replica: Replica) -> int:
    keys = [request.group.id if request.group else None, request.compound.id if request.compound else None]
    held = max((replica.prefixes.get(key, 0) for key in keys if key is not None), default=0)
    return min(held, request.prompt_tokens)
