"""QUART's smoother (§5.2) and CPU compensator (§5.3): take back replicas that bursts do not need, add cores instead.

Equation 4 adds θ·CV_i to every logit of the softmax over j, where it cancels; `attention` uses CV_j. The paper leaves
β open; `weight` is CV / (1 + CV): 0 for a stage without bursts, which then takes its neighbours' mean, and towards 1
for a bursty one, which keeps what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from ramify.serving.errors import BadPool


def weight(cv: float) -> float:
    """β of equation 7."""
    return cv / (1 + cv)


def neighbours(index: int, count: int) -> tuple[int, ...]:
    """The stages before and after one of a pipeline."""
    return tuple(j for j in (index - 1, index + 1) if 0 <= j < count)


def smoothed(wanted: Sequence[float], cvs: Sequence[float]) -> list[float]:
    """Equation 7 over a pipeline: β(CV_i)·y_i + (1 - β(CV_i))·(mean of the neighbours)."""
    out = []
    for i, (own, cv) in enumerate(zip(wanted, cvs, strict=True)):
        beside = neighbours(i, len(wanted))
        mean = sum(wanted[j] for j in beside) / len(beside) if beside else own
        out.append(weight(cv) * own + (1 - weight(cv)) * mean)
    return out


def attention(similarity: Sequence[float], cvs: Sequence[float], theta: float) -> list[float]:
    """Equation 4 for one stage: α_j over its neighbours, from their similarity to it and their CV."""
    logits = [(s if s > 0 else 0.01 * s) + theta * cv for s, cv in zip(similarity, cvs, strict=True)]
    highest = max(logits, default=0.0)
    weights = [exp(logit - highest) for logit in logits]
    return [w / sum(weights) for w in weights]


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """Service seconds by cores, as measured offline. Raises BadPool for fewer than two different counts."""

    cores: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.cores) != len(self.seconds) or len(set(self.cores)) < 2 or min(self.cores) < 1:
            raise BadPool(f"a CPU profile needs times for two numbers of cores, got {self.cores}: {self.seconds}")

    def line(self) -> tuple[float, float]:
        """Intercept and slope of the least-squares line of seconds over 1 / cores: in that Amdahl's law is linear."""
        xs = [1 / c for c in self.cores]
        x, y = sum(xs) / len(xs), sum(self.seconds) / len(xs)
        slope = sum((a - x) * (b - y) for a, b in zip(xs, self.seconds, strict=True)) / sum((a - x) ** 2 for a in xs)
        return y - slope * x, slope


@dataclass(frozen=True, slots=True)
class Compensation:
    """Cores for each replica, and whether even the most are too few, so that a replica must be added."""

    cores: int
    enough: bool


def compensate(profile: CpuProfile, service_s: float, most: int) -> Compensation:
    """The fewest cores with which a call takes at most `service_s`.

    Algorithm 1 returns inside its loop over stages, after the first one; callers ask here once for each stage.
    """
    fixed, slope = profile.line()
    for cores in range(1, most + 1):
        if fixed + slope / cores <= service_s:
            return Compensation(cores, True)
    return Compensation(most, False)
