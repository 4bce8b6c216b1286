"""The cutoff p, found while serving: thesis §4.2, "exploring different thresholds and converging"."""

from __future__ import annotations

CANDIDATES = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5)


class Cutoff:
    """A bandit whose arms are thresholds and whose reward is goodput a second.

    Time goes in turns of `turn_frames` frames. Each threshold gets one turn; after that the best so far is used, and
    every `explore_every`-th turn one of the others, in rotation, so that a change of load is noticed. Rewards are
    averaged with weight `learn`. No chance in it: a replay repeats it.
    """

    def __init__(
        self, fixed: float | None = None, turn_frames: int = 40, explore_every: int = 8, learn: float = 0.3
    ) -> None:
        self.value = CANDIDATES[0] if fixed is None else fixed
        self._fixed = fixed is not None
        self._turn_frames, self._explore_every, self._learn = turn_frames, explore_every, learn
        self._rates: dict[float, float] = {}
        self._frames = self._turns = self._tried = 0
        self._earned = 0.0
        self._began: float | None = None

    def earned(self, goodput: float) -> None:
        self._earned += goodput

    def frame(self, now: float) -> None:
        """A frame begins."""
        if self._fixed:
            return
        if self._began is None:
            self._began = now
        self._frames += 1
        if self._frames <= self._turn_frames or now <= self._began:
            return
        rate = self._earned / (now - self._began)
        before = self._rates.get(self.value, rate)
        self._rates[self.value] = before + self._learn * (rate - before)
        self._began, self._earned, self._frames = now, 0.0, 1
        self._turns += 1
        self.value = self._next()

    def _next(self) -> float:
        for candidate in CANDIDATES:
            if candidate not in self._rates:
                return candidate
        best = max(CANDIDATES, key=lambda p: self._rates[p])
        if self._turns % self._explore_every:
            return best
        others = [p for p in CANDIDATES if p != best]
        self._tried += 1
        return others[self._tried % len(others)]
