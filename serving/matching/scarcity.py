"""Ours: one price a job, the devices that it still needs times how many others could use them.

Venn keeps scarce devices for those who can use nothing else by moving sets of devices between groups. A price does it
with one sort: left · (|S_j| / |S|)^2, lowest first. Over the workloads of Venn's evaluation it is as good as
algorithm 3 with the same knowledge (docs/how-to/fleet.md), so it is kept instead. It uses what Venn does not: how
many devices a job's further rounds need, which a run's plan and journal say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.serving.matching.types import Order, Rates, Request, eligible, size

ABUNDANCE = 2.0
"""The exponent of |S_j| / |S|. 1, 2 and 4 were tried, on seeds that the evaluation does not use."""


@dataclass(frozen=True)
class ScarcityPriced:
    """patience: lowers the price of a job that takes longer than its fair share T = M · (time alone), by
    (T / age)^patience; 0 is without. A job that is within its fair share is not touched, unlike under Venn's ε.
    """

    patience: float = 0.0

    def order(self, requests: Sequence[Request], rates: Rates) -> Order:
        whole = sum(rates.values())
        share = {group: size(eligible(group, rates), rates) / whole for group in {one.group for one in requests}}

        def price(one: Request) -> float:
            left = one.remaining if one.left is None else one.left
            late = one.age_s / one.fair_s if one.fair_s else 0.0
            return float(left * share[one.group] ** ABUNDANCE / max(1.0, late) ** self.patience)

        ranked = sorted(requests, key=lambda one: (price(one), one.arrived))
        return {atom: [one.job for one in ranked if one.group in atom] for atom in rates}
