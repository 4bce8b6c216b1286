"""The PID controller of QUART's corrector (equation 3), with the sign of its error corrected.

Algorithm 1 prints e = T_target - T, which is negative exactly when replicas must be added; here e = (T - T_target) /
T_target, so that one set of gains fits pools of any speed. The paper gives neither gains nor limits. The error is
clamped, since T is infinite for an overloaded pool, and the integral stands still while the output is at its limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from ramify.serving.errors import BadPool

_MOST_ERROR = 4.0  # five times the target or more counts alike


@dataclass(frozen=True, slots=True)
class Gains:
    """Replicas for each unit of relative error, of error-seconds, and of error per second."""

    proportional: float = 1.0
    integral: float = 0.1
    derivative: float = 0.1


class PID:
    """One pool's controller. Call `step` with times that do not go back."""

    def __init__(self, gains: Gains = Gains(), *, most: float = 8.0) -> None:
        self._gains, self._most = gains, most
        self._sum = 0.0
        self._last: tuple[float, float] | None = None  # time, error

    def step(self, sojourn_s: float, target_s: float, now: float) -> float:
        """The change in replicas, within ±`most`. Raises BadPool for a target of 0, or a time before the last."""
        if not target_s > 0:
            raise BadPool(f"a pool's target time is above 0 s, got {target_s}")
        error = min(_MOST_ERROR, (sojourn_s - target_s) / target_s)
        since, before = self._last or (now, error)
        if now < since:
            raise BadPool(f"a PID controller was asked at {now}, before its last step at {since}")
        took = now - since
        slope = (error - before) / took if took else 0.0
        total = self._sum + error * took
        out = self._gains.proportional * error + self._gains.integral * total + self._gains.derivative * slope
        if abs(out) <= self._most or abs(total) < abs(self._sum):
            self._sum = total
        self._last = now, error
        return max(-self._most, min(self._most, out))
