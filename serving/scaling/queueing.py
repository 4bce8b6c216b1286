"""Queueing formulas: Erlang's C, the M/M/c sojourn time, and how a queue changes the burstiness of what leaves it.

QUART's equation 1 is not the M/M/c formula that its text names: at arrival rate .9, service rate 1 and one replica
it gives 1.9, and the true time is 10. `sojourn_s` is the true one.
"""

from __future__ import annotations

from math import inf, sqrt

from ramify.serving.errors import BadPool


def erlang_c(servers: int, load: float) -> float:
    """The probability that a call waits, in M/M/c. `load`: arrival rate over service rate. 1 from `servers` on.

    By the recursion of Erlang's B, which neither overflows nor cancels. Raises BadPool.
    """
    if servers < 1 or not load >= 0:
        raise BadPool(f"Erlang's C needs a server and a load of at least 0, got {servers} and {load}")
    if load >= servers:
        return 1.0
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    share = load / servers
    return blocked / (1 - share + share * blocked)


def sojourn_s(arrival_rate: float, service_rate: float, servers: int) -> float:
    """Mean seconds in an M/M/c queue and its service; infinite where work comes faster than it is done."""
    if service_rate <= 0:
        raise BadPool(f"a replica's service rate is above 0, got {service_rate}")
    room = servers * service_rate - arrival_rate
    if room <= 0:
        return inf
    return erlang_c(servers, arrival_rate / service_rate) / room + 1 / service_rate


def bursty_sojourn_s(
    arrival_rate: float, service_rate: float, servers: int, cv: float, service_cv: float = 1.0
) -> float:
    """The same for GI/G/c, by Allen and Cunneen: the wait of M/M/c times (c_a² + c_s²) / 2."""
    wait = sojourn_s(arrival_rate, service_rate, servers) - 1 / service_rate
    return wait * (cv**2 + service_cv**2) / 2 + 1 / service_rate if wait else 1 / service_rate


def replicas_for(
    arrival_rate: float, service_rate: float, target_s: float, *, cv: float = 1.0, most: int = 1024
) -> int:
    """The fewest replicas with a mean time in queue and service of at most `target_s`; `most` if there are none."""
    fewest = max(1, int(arrival_rate / service_rate))
    for servers in range(fewest, most):
        if bursty_sojourn_s(arrival_rate, service_rate, servers, cv) <= target_s:
            return servers
    return most


def departure_cv(arrival_cv: float, utilisation: float, servers: int, service_cv: float = 1.0) -> float:
    """The CV of the times between departures of GI/G/m (Whitt 1983, equation 39).

    c_d² = 1 + (1 - ρ²)(c_a² - 1) + ρ²/√m · (c_s² - 1)
    """
    rho = min(1.0, max(0.0, utilisation))
    squared = 1 + (1 - rho**2) * (arrival_cv**2 - 1) + rho**2 / sqrt(max(1, servers)) * (service_cv**2 - 1)
    return sqrt(max(0.0, squared))
