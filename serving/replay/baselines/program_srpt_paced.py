"""Program-level SRPT that reckons with the pace that Concord reckons with.

A token waits for the prompts of its steps too (docs/decisions/049): of each second, the share that prompts took of
late is not the streams'. Without it too much is held to be met still, and more where limits are tight.
"""

from __future__ import annotations

from math import exp

from ramify.serving.policy.jobs import JobBook
from ramify.serving.policy.types import Verdict, View
from ramify.serving.replay.baselines.program_srpt import ProgramSrpt

_LATELY_S = 10.0
_MOST = 0.7  # of the GPU's time, as far as the pace goes by it


class PacedProgramSrpt(ProgramSrpt):
    """`refuse`: the quantile of the length for saying that a call cannot be met."""

    def __init__(self, refuse: float = 0.1) -> None:
        super().__init__(refuse=refuse)
        self._book = self._paced = _PacedBook(0.5, refuse, 120.0, 1.0)
        self._at = 0.0

    def decide(self, view: View, now: float) -> Verdict:
        self._paced.lately_s *= exp((self._at - now) / _LATELY_S)
        self._at = now
        return super().decide(view, now)


class _PacedBook(JobBook):
    lately_s = 0.0  # GPU time of prompts, decaying

    def follow(self, view: View, token_s: float | None = None, slowdown: float = 1.0) -> float:
        self.lately_s += self.started_s
        self.started_s = 0.0
        slower = slowdown / (1.0 - min(_MOST, self.lately_s / _LATELY_S))
        return super().follow(view, None if token_s is None else token_s * slower, slower)
