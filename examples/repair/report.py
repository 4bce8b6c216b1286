"""The report of a repair run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .suite import Survey

if TYPE_CHECKING:
    from .hunt import Hunt


@dataclass(frozen=True, slots=True)
class Row:
    """One program. `place` is the rank of the winning edit, and so the number of forks that the ranking needed.

    `random` is the expected rank of the first fixing edit in a random order of the same `pool` candidates:
    (pool + 1) / (fixing + 1), with the number of fixing edits that were seen. It is an upper bound, since edits that
    were not tried may also fix the program. An oracle needs one fork for each edit.
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
    refused: str = ""  # why the model ranked nothing: the type of the error, ": " and its message

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
            _by_chance(hunt),
            len(hunt.edits),
            hunt.ranked_by,
            hunt.refused,
        )


def _by_chance(hunt: Hunt) -> float:
    """Return the expected rank of the first of `fixing` edits, or of the last of several that are needed together."""
    needed = len(hunt.edits)
    if not needed:
        return 0.0
    return (hunt.pool + 1) * (1 / (hunt.fixing + 1) if needed == 1 else needed / (needed + 1))


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a whole run. Its text is the table that people read."""

    rows: tuple[Row, ...]

    @property
    def repaired(self) -> int:
        return sum(row.repaired for row in self.rows)

    @property
    def broken(self) -> int:
        """The number of programs to repair."""
        return sum(row.problem != "nothing to repair" for row in self.rows)

    def __str__(self) -> str:
        head = f"{'PROGRAM':<{WIDTH}} {'TESTS':>9}  WORLDS  MODEL  PRIOR  RANDOM  ORACLE"
        lines = [head, *(line for row in self.rows for line in _lines(row))]
        lines.append(f"{self.repaired} of {self.broken} repaired")
        lines.append(
            "WORLDS: forks made. The others: forks needed with one a candidate, in the order with the model's\n"
            "votes, in the prior's alone, in a random one (expected), and with an oracle"
        )
        return "\n".join([*lines, *_unaided(self.rows)])


_LATE = ("DeadlineInfeasible", "LLMTimeout")


def _unaided(rows: Sequence[Row]) -> list[str]:
    """Return where the model's votes are missing, and what to do: one line for each kind of error, whatever its
    numbers.
    """
    kinds = defaultdict[str, list[str]](list)
    for row in rows:
        if row.refused:
            kind, _, said = row.refused.partition(": ")
            kinds[kind].append(said)
    lines = []
    for kind, each in kinds.items():
        why, more = f"did not answer ({each[0].rstrip('.')})", ""
        if kind in _LATE:
            why, more = "had no time left to answer before the run's deadline", "; more time: --deadline 20m"
        lines.append(
            f"for {len(each)} of {len(rows)} programs the model {why}: "
            f"their edits were tried in the prior's order, without its votes{more}"
        )
    return lines


WIDTH = 20


def _lines(row: Row) -> list[str]:
    if not row.repaired:
        return [f"{row.program:<{WIDTH}} {row.tests:>9}  {row.forks:>6}  {row.problem}"]
    # an edit found only after another one was in place has no rank of its own
    counts = f"{row.place or '-':>5}  {row.prior_place or '-':>5}  {row.random:>6.0f}  {row.oracle:>6}"
    return [
        f"{row.program:<{WIDTH}} {row.tests:>9}  {row.forks:>6}  {counts}",
        *(f"    {edit}" for edit in row.edits),
    ]
