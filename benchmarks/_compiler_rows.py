from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    ours: float  # not a number: not measured, and the note says why
    unit: str
    target: float | None = None
    at_least: bool = False  # the target is a floor, not a ceiling
    peer: str = ""
    peer_value: float | None = None
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ours >= self.target if self.at_least else self.ours <= self.target

    def as_object(self) -> dict[str, object]:
        ratio = self.ours / self.peer_value if self.peer_value else None
        return {
            "name": self.name,
            "ours": None if math.isnan(self.ours) else self.ours,
            "unit": self.unit,
            "peer": self.peer or None,
            "peer_value": self.peer_value,
            "ratio": ratio,
            "target": self.target,
            "met": self.met,
            "spread": self.spread,
            "note": self.note or None,
        }

    def line(self) -> str:
        spread = "" if self.spread is None else f" [{self.spread[0]:.4g}–{self.spread[1]:.4g}]"
        target = "" if self.target is None else f"{'>=' if self.at_least else '<='} {self.target:g}"
        met = {True: "met", False: "MISSED", None: ""}[self.met]
        peer = f"{self.peer}: {self.peer_value:.4g}" if self.peer_value is not None else self.peer
        note = f"\n    {self.note}" if self.note else ""
        return f"{self.name}\n    {self.ours:.4g} {self.unit}{spread}  {target}  {met}  {peer}{note}"


def measured(name: str, values: list[float], unit: str, **more: object) -> Row:
    """The median of these, with their spread."""
    return Row(name, median(values), unit, spread=(min(values), max(values)), **more)  # type: ignore[arg-type]
