"""The integer program of Venn's appendix C.2: the least average scheduling delay that any assignment reaches.

[E] The printed constraint Σ_j x_ij·e_ij ≤ 1 lets a device work for a job that it is not eligible for; it must be
x_ij ≤ e_ij. Devices are known with their times, as no online rule knows them, so the result is a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from ramify.serving.matching import Atom, Group


def least_mean_delay(devices: Sequence[tuple[float, Atom]], jobs: Sequence[tuple[Group, int]]) -> float:
    """Return the least mean of the times at which the jobs have all their devices.

    devices: (time, atom) of each device that comes. jobs: (group, demand). Raises ValueError if the devices do not
    suffice.
    """
    count, many = len(devices), len(jobs)
    times = np.array([time for time, _ in devices])
    cost = np.concatenate([np.zeros(count * many), np.full(many, 1.0 / many)])  # x_ij, then T_j
    upper = np.concatenate(
        [[float(group in atom) for _, atom in devices for group, _ in jobs], np.full(many, np.inf)]
    )
    once = np.kron(np.eye(count), np.ones(many))
    filled = np.kron(np.ones(count), np.eye(many))
    last = np.zeros((count * many, count * many + many))
    for i in range(count):
        for j in range(many):
            last[i * many + j, i * many + j] = times[i]
            last[i * many + j, count * many + j] = -1.0
    demand = np.array([float(need) for _, need in jobs])
    found = milp(
        cost,
        integrality=np.concatenate([np.ones(count * many), np.zeros(many)]),
        bounds=Bounds(0, upper),
        constraints=[
            LinearConstraint(np.hstack([once, np.zeros((count, many))]), -np.inf, 1),
            LinearConstraint(np.hstack([filled, np.zeros((many, many))]), demand, demand),
            LinearConstraint(last, -np.inf, 0),
        ],
    )
    if not found.success:
        raise ValueError(f"these devices do not suffice for the jobs: {found.message}")
    return float(found.fun)
