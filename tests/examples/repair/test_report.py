"""What a repair run says at its end."""

from __future__ import annotations

from examples.repair.report import RepairReport, Row

LATE = "DeadlineInfeasible: the deadline of 600 s passed {} s ago, so the model is not asked."
TOLD = """\
for 2 of 4 programs the model had no time left to answer before the run's deadline: \
their edits were tried in the prior's order, without its votes; more time: --deadline 20m
for 1 of 4 programs the model did not answer (no weights: `ramify models pull`): \
their edits were tried in the prior's order, without its votes"""


def row(refused: str = "") -> Row:
    return Row("gcd", "1/2", True, ranked_by="prior" if refused else "model", refused=refused)


def test_programs_without_the_models_votes_are_counted_in_one_line_a_reason() -> None:
    missing = "ModelMissing: no weights: `ramify models pull`."
    told = str(RepairReport((row(), row(LATE.format(1.5)), row(LATE.format(2)), row(missing))))
    assert told.endswith(f"\n{TOLD}")
    assert "the model had" not in str(RepairReport((row(), row())))
