"""The page by which users pick a policy is what the command writes from the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay.jobs import Result
from benchmarks.replay.report.decision_page import page
from benchmarks.replay.results import read_packed

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def stored() -> list[Result]:
    return list(read_packed(ROOT / "benchmarks" / "data" / "evaluation.jsonl.gz").values())


def test_the_page_is_the_commands(stored: list[Result]) -> None:
    assert (ROOT / "docs" / "evaluation.md").read_text("utf-8") == page(stored), "make it again: see its first line"


def test_a_missing_replay_is_named(stored: list[Result]) -> None:
    some = [one for one in stored if one.job.contender != "edf-plan"]
    with pytest.raises(LookupError, match="edf-plan with loose limits"):
        page(some)


def test_it_is_one_page() -> None:
    assert len((ROOT / "docs" / "evaluation.md").read_text("utf-8").splitlines()) <= 80
