"""What a repair run says at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .suite import Survey

if TYPE_CHECKING:
    from .workflow import Hunt


@dataclass(frozen=True, slots=True)
class Row:
    """One program. `place` is where the winning edit stood: so many forks the ranking needed.

    `random` is the expected place of the first mending edit in a random order of the same `pool` candidates,
    (pool + 1) / (mending + 1), with as many mending ones as were seen: an upper bound, since edits that were not
    tried may mend as well. An oracle needs one fork an edit.
    """

    program: str
    tests: str
    repaired: bool
    problem: str = ""
    edits: tuple[str, ...] = ()
    forks: int = 0
    pool: int = 0
    place: int = 0
    prior_place: int = 0
    random: float = 0.0
    oracle: int = 0
    ranked_by: str = ""

    @staticmethod
    def of(found: Survey, hunt: Hunt, repaired: bool) -> Row:
        problem = found.problem or ("" if found.failures else "nothing to repair")
        if not problem and not repaired:
            problem = f"not repaired in {hunt.forks} forks"
        return Row(
            found.suite.program,
            "" if found.problem else str(found).replace(" tests pass", ""),
            repaired,
            problem,
            tuple(hunt.edits),
            hunt.forks,
            hunt.pool,
            hunt.place,
            hunt.prior_place,
            (hunt.pool + 1) / (hunt.fixing + 1) if hunt.fixing else 0.0,
            len(hunt.edits),
            hunt.ranked_by,
        )


@dataclass(frozen=True, slots=True)
class RepairReport:
    rows: tuple[Row, ...]

    @property
    def repaired(self) -> int:
        return sum(row.repaired for row in self.rows)

    @property
    def broken(self) -> int:
        """How many programs there were to repair."""
        return sum(row.problem != "nothing to repair" for row in self.rows)

    def __str__(self) -> str:
        return f"{self.repaired} of {self.broken} repaired"


def table(report: RepairReport) -> str:
    return "\n".join(f"{row}" for row in report.rows) + f"\n{report}"
