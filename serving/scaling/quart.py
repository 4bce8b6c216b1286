"""QUART's controller, with its published formulas corrected: correct by M/M/c and PID, then smooth by CV.

Where the paper leaves something open: a pool's target is `target` times its service time; replicas that no correction
asks for are those with which GI/G/c keeps the target at the CV that Whitt's formula propagates; a pool is taken back
one replica at a time. Algorithm 1 calls μ_i a request rate where it computes replicas; this uses λ_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from ramify.serving.scaling.budget import within_budget
from ramify.serving.scaling.key_stages import KeyStages
from ramify.serving.scaling.pid import PID, Gains
from ramify.serving.scaling.queueing import departure_cv, replicas_for, sojourn_s
from ramify.serving.scaling.smoothing import CpuProfile, compensate, smoothed
from ramify.serving.scaling.types import FutureCalls, PoolLoad, Scaling


class Quart:
    """Scales the stages that hold a pipeline back. It looks at the past only.

    budget: replicas of all pools together. target: of the time in a pool, in its service times.
    profiles, most_cores: service times by cores, for pools whose replicas get more cores in place of replicas.
    """

    def __init__(
        self,
        budget: int,
        *,
        target: float = 1.5,
        gains: Gains | None = None,
        profiles: Mapping[str, CpuProfile] | None = None,
        most_cores: int = 1,
    ) -> None:
        self._budget, self._target, self._gains = budget, target, gains or Gains()
        self._profiles, self._most_cores = dict(profiles or {}), most_cores
        self._pids: dict[str, PID] = {}
        self._keys = KeyStages()

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        corrected = {pool.name: self._corrected(pool, now) for pool in pools}
        wanted, cpus = self._smoothed(pools, corrected)
        least = {pool.name: pool.limits.least for pool in pools}
        return Scaling(within_budget(wanted, least, self._budget), self._keys.list(now), cpus or None)

    def _corrected(self, pool: PoolLoad, now: float) -> float:
        """r' of the corrector (equations 1 to 3); a pool within its target keeps its replicas."""
        target_s = self._target / pool.service_rate
        took_s = sojourn_s(pool.arrival_rate, pool.service_rate, max(1, pool.replicas)) + (
            pool.queue / (pool.service_rate * max(1, pool.replicas))  # the delayed feedback: what waits now
        )
        pid = self._pids.setdefault(pool.name, PID(self._gains))
        change = pid.step(took_s, target_s, now)
        if took_s <= target_s or change <= 0:
            return pool.replicas
        self._keys.scaled_up(pool.name, now)
        return pool.replicas + ceil(change)

    def _smoothed(
        self, pools: Sequence[PoolLoad], corrected: Mapping[str, float]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Take back what the propagated CV does not need (equation 7), never below the least."""
        cvs: list[float] = []
        for pool in pools:
            cvs.append(pool.cv)
            if len(cvs) > 1:
                before, busy = pools[len(cvs) - 2], pools[len(cvs) - 2].arrival_rate
                rho = busy / (before.service_rate * max(1, before.replicas))
                cvs[-1] = departure_cv(cvs[-2], rho, max(1, before.replicas))
        needs = [self._needs(pool, cv) for pool, cv in zip(pools, cvs, strict=True)]
        asked = [ceil(corrected[pool.name]) for pool in pools]
        grows = [ask > pool.replicas for ask, pool in zip(asked, pools, strict=True)]
        wanted = [ask if grow else need for ask, grow, need in zip(asked, grows, needs, strict=True)]
        out: dict[str, int] = {}
        cpus: dict[str, int] = {}
        for i, (pool, mean) in enumerate(zip(pools, smoothed(wanted, cvs), strict=True)):
            want = asked[i] if grows[i] else max(pool.replicas - 1, min(pool.replicas, max(needs[i], ceil(mean))))
            if want < pool.replicas and pool.name in self._profiles:
                found = compensate(self._profiles[pool.name], 1 / pool.service_rate, self._most_cores)
                cpus[pool.name] = found.cores
                want = want if found.enough else pool.replicas
            out[pool.name] = pool.limits.within(want)
        return out, cpus

    def _needs(self, pool: PoolLoad, cv: float) -> int:
        """The replicas that the rate and its burstiness need."""
        target_s = self._target / pool.service_rate
        return replicas_for(pool.arrival_rate, pool.service_rate, target_s, cv=cv, most=max(1, pool.limits.most))
