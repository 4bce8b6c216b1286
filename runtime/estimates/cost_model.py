"""A cost model for forking, restoring, recomputing and flushing, fitted online from the journal.

Each of the four costs is a line, seconds = a + b * size, fitted by least squares with exponential forgetting (Haykin,
Adaptive Filter Theory, chapter 10; with two coefficients it has a closed form). Recomputation has one line per step.

Each decision is recorded in its row: the choice, its predicted and actual seconds, and the predicted seconds of the
alternative. `regrets` reads these decisions back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ramify.compiler.plan import OpKind
from ramify.runtime.records import OpRecord, OpStatus

SURE = 3.9
"""The weight of observations from which a prediction is sure enough to decide by: four recent ones."""

CLEARLY = 2.0
"""How many times cheaper the unusual choice must be by its prediction."""

FORGET = 0.98
"""The factor by which each new observation discounts the earlier ones; about the last fifty count."""


class Cost(StrEnum):
    """The operations whose cost is predicted."""

    FORK = "fork"  # size: layers
    RESTORE = "restore"  # size: layers
    RECOMPUTE = "recompute"  # size: none; one line for each step
    FLUSH = "flush"  # size: bytes sealed


@dataclass(slots=True)
class CostLine:
    """The line seconds = a + b * size through weighted observations."""

    weight: float = 0.0
    x: float = 0.0  # weighted sums
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observe(self, size: float, seconds: float) -> None:
        self.weight = FORGET * self.weight + 1.0
        self.x = FORGET * self.x + size
        self.y = FORGET * self.y + seconds
        self.xx = FORGET * self.xx + size * size
        self.xy = FORGET * self.xy + size * seconds

    def predict(self, size: float) -> float | None:
        """Return the predicted seconds, never negative: None before the first observation, the mean if all
        observations had the same size."""
        if self.weight == 0:
            return None
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        spread = self.xx / self.weight - mean_x**2
        slope = 0.0 if spread <= 1e-9 * max(1.0, mean_x**2) else (self.xy / self.weight - mean_x * mean_y) / spread
        return max(0.0, mean_y + slope * (size - mean_x))


@dataclass(slots=True)
class CostModel:
    """The fitted lines, by operation and name. Only RECOMPUTE has names: those of steps."""

    _lines: dict[tuple[Cost, str], CostLine] = field(default_factory=dict)

    def observe(self, cost: Cost, seconds: float, *, size: float = 0.0, name: str = "") -> None:
        self._lines.setdefault((cost, name), CostLine()).observe(size, seconds)

    def predict(self, cost: Cost, *, size: float = 0.0, name: str = "") -> float | None:
        """Return the predicted seconds, or None without an observation."""
        line = self._lines.get((cost, name))
        return None if line is None else line.predict(size)

    def again_instead(self, name: str, *, layers: int) -> Choice | None:
        """Return the choice to run the step or command again instead of taking its recorded result over; None if that
        is not surely cheaper."""
        again, restore = self._lines.get((Cost.RECOMPUTE, name)), self._lines.get((Cost.RESTORE, ""))
        if again is None or restore is None or min(again.weight, restore.weight) < SURE:
            return None
        anew, over = again.predict(0.0), restore.predict(layers)
        assert anew is not None and over is not None
        return Choice("run again", anew, over) if anew * CLEARLY < over else None

    def learn(self, rows: Iterable[OpRecord]) -> CostModel:
        """Add the observations in journal rows, in their order."""
        for row in rows:
            if row.status is OpStatus.DONE:
                self._learn(row)
        return self

    def _learn(self, row: OpRecord) -> None:
        if row.reused_from is not None:
            if (took := seconds_of(row.attrs, "took_ms")) is not None:
                self.observe(Cost.RESTORE, took, size=float(row.attrs.get("layers", 0)))
        elif row.kind in (OpKind.RUN, OpKind.BREAK) and row.step is not None:  # a command's row leaves out its seal
            self.observe(Cost.RECOMPUTE, row.ended_at - row.started_at, name=row.step)
        if (fork := seconds_of(row.attrs, "fork_ms")) is not None:
            self.observe(Cost.FORK, fork, size=float(row.attrs.get("layers", 0)))
        if (seal := seconds_of(row.attrs, "seal_ms")) is not None:
            self.observe(Cost.FLUSH, seal, size=float(row.attrs.get("sealed_bytes", 0)))


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision between two operations. Seconds are None if there was nothing to predict from."""

    chose: str
    predicted_s: float | None
    instead_s: float | None  # predicted for the alternative

    def attrs(self, took_s: float) -> dict[str, str]:
        """Return the decision as attributes for the row of the chosen operation."""
        return {"chose": self.chose, "took_ms": _ms(took_s)} | {
            name: _ms(value)
            for name, value in (("predicted_ms", self.predicted_s), ("instead_ms", self.instead_s))
            if value is not None
        }


@dataclass(frozen=True, slots=True)
class Regret:
    """A recorded decision and its outcome, from the row `seq`."""

    seq: int
    what: str
    chose: str
    took_s: float
    predicted_s: float | None
    instead_s: float | None

    @property
    def regret_s(self) -> float:
        """Return the seconds that the alternative would have saved by its prediction, at least 0."""
        return 0.0 if self.instead_s is None else max(0.0, self.took_s - self.instead_s)


def regrets(rows: Iterable[OpRecord]) -> list[Regret]:
    """Return all decisions in the rows, in their order."""
    found = []
    for row in rows:
        took = seconds_of(row.attrs, "took_ms")
        if took is not None and "chose" in row.attrs:
            predicted, instead = seconds_of(row.attrs, "predicted_ms"), seconds_of(row.attrs, "instead_ms")
            found.append(Regret(row.seq, row.step or row.op_id, row.attrs["chose"], took, predicted, instead))
    return found


def seconds_of(attrs: Mapping[str, str], name: str) -> float | None:
    """Return a millisecond attribute in seconds, or None if it is missing."""
    return float(attrs[name]) / 1000 if name in attrs else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f}"
