"""Rules that order jobs without regard to which devices others can use: the baselines of Venn's evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ramify.serving.matching.types import Order, Rates, Request


def _by(requests: Sequence[Request], rates: Rates, key: Callable[[Request], tuple[float, ...]]) -> Order:
    ranked = sorted(requests, key=key)
    return {atom: [one.job for one in ranked if one.group in atom] for atom in rates}


class Fifo:
    """The job that arrived first is served first."""

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        return _by(requests, rates, lambda one: (one.arrived,))


class Srsf:
    """Shortest remaining service first: the request that needs the fewest devices."""

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        return _by(requests, rates, lambda one: (one.remaining, one.arrived))


@dataclass
class RandomOrder:
    """Jobs in a random order, drawn anew at each call: the "optimized random matching" of Venn's evaluation, under
    which fewer rounds are aborted than if each device chose a job by itself."""

    random: random.Random
    _ranks: dict[str, float] = field(default_factory=dict)

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        self._ranks = {one.job: self.random.random() for one in requests}
        return _by(requests, rates, lambda one: (self._ranks[one.job],))
